"""Environments. Only this package knows Gymnasium, auto-reset, truncation and n-step returns.

From what a user names to what the learner reads:

| module         | what it does |
|----------------|--------------|
| `targets`      | makes an environment from an id, a class or a function |
| `suites`       | packages that bring environments, and the extra that installs each |
| `envpool`      | environments that are stepped in C++ |
| `observations` | flattens Dict, Tuple and discrete observations |
| `inspect`      | tries an environment out before a run, and describes it as an `EnvSpec` |
| `group`        | steps several environments as one; each step gives finished rows |
| `stepping`     | one step of all of them, with auto-reset and truncation resolved |
| `transitions`  | turns steps into rows: single steps, n-step returns, segments |
| `rendering`    | draws an environment, on a machine without a display too |

Imported by `roles` and everything above them.
"""
