"""`spreeze sweep`: trains with different values of knobs, and finds the best.

| module    | what it does                                                            |
|-----------|-------------------------------------------------------------------------|
| `plan`    | what a sweep is: its command line, its folder, and whether it continues  |
| `score`   | what counts, and how far a run is                                        |
| `study`   | Optuna: draws values, decides what is pruned, stores all in `study.db`   |
| `trials`  | trains the runs of the trials, side by side where the machine holds them |
| `display` | shows the progress                                                       |
| `report`  | the table at the end, the command to repeat the best, and the plot       |

The space is in `settings/space.py`.
"""
