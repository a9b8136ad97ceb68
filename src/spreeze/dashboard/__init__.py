"""The live page: reads run directories, touches no process of a run, changes nothing."""
