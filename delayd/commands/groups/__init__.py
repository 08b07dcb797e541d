"""Changes of a whole group: `delayd cancel`, `fire` and `reschedule` with `--group`.

| file | what it does |
|---|---|
| `change.py` | what is asked for each id |
| `journal.py` | the file of a job: its ids, what each is asked, what each was answered |
| `job.py` | lists the ids of a group into a journal, and asks for each that has no answer |
| `command.py` | what the commands share: options, counts, exit codes |

A job first lists, and then asks. So it never meets what it has moved itself, and a run that was
killed goes on with the ids and the due times of the first list.
"""
