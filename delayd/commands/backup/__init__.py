"""Backups of a running cluster: `delayd backup`, and `delayd restore` into a data directory.

| file | what it holds |
|---|---|
| `stores.py` | where backups lie: a directory, or an object store by fsspec |
| `packs.py` | the objects that hold what was copied, and what is known of them |
| `manifest.py` | what one backup is |
| `plan.py` | which bytes of a file are there already. Pure |
| `saving.py` | making a backup, from a donor's snapshot |
| `keeping.py` | listing, verifying and removing backups |
| `source.py` | a backup as a source of copies |
| `restoring.py` | a data directory, made from a backup |
| `showing.py` | results as text and JSON. Pure |
| `commands.py` | the commands |

    TARGET/delayd-backup.json     whose backups these are
    TARGET/backups/TIME-SUM.json  a manifest: one backup. Written last
    TARGET/packs/SUM.pack         what was copied; shared by backups
    TARGET/LOCK                   locked by the process that writes, if TARGET is a directory

Invariants: a manifest is written after all that it names, and removed before any of it; nothing is
written twice under one name; what one name holds never changes.

Source: docs/design/storage.md, "Backups".
"""
