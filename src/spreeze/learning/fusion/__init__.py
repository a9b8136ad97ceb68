"""The fused update: a compiler of our own that takes a second where others take half a minute.

    record      runs one update and records its operations
    lowering    each operation as arithmetic on elements (`operations`), or as a call of the library
    nodes       the expressions that lowering makes
    places      those whose elements are at places that a kernel computes
    indices     which element of a tensor an expression reads
    storing     decides which values are stored
    schedule    puts expressions that run over the same elements into one kernel
    source      the C++ of a kernel's body; `writing` adds its loops
    program     all steps in order, and where their values are in memory
    cpu, gpu    how loops run on a device, and its compiler
    running     runs the steps
    fuse        all of it, from a function to a file and back

It knows the operations that losses, networks and optimisers are made of. Every other operation stays a call
of the library between two kernels.
"""
