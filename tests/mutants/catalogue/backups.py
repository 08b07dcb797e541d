"""What a backup believes, removes and restores."""

from mutants.mutant import Mutant, one_edit

FOLDER = "delayd/commands/backup"
SAVING = f"{FOLDER}/saving.py"
KEEPING = f"{FOLDER}/keeping.py"
RESTORING = f"{FOLDER}/restoring.py"
MADE = "tests/unit/commands/test_backup_saving.py"
RESTORED = "tests/unit/commands/test_restore.py"
SOURCE = "storage.md#backups"

BACKUPS: tuple[Mutant, ...] = (
    one_edit(
        "earlier-bytes-believed",
        "bytes of an earlier backup count only if number and digest of all frames are the line's",
        SOURCE,
        SAVING,
        "        if count != line.info.count or (digest - line.info.digest) % DIGEST_MODULO:\n",
        "        if count < 0:\n",
        f"{MADE}::test_a_wheel_that_was_made_again_under_the_same_names_is_not_mixed",
        is_simulated=False,
    ),
    one_edit(
        "place-of-a-reply-believed",
        "bytes of an earlier backup count only if pending replies are where their lines say",
        SOURCE,
        SAVING,
        "!= (each.partition, each.offset):\n",
        "== ():\n",
        f"{MADE}::test_the_bytes_of_a_node_with_another_order_are_not_taken",
        is_simulated=False,
    ),
    one_edit(
        "manifest-without-its-packs",
        "a manifest is written when all packs that it names are there",
        SOURCE,
        SAVING,
        "        if lost := sorted(manifest.packs - self._store.names(FOLDER)):\n",
        "        if lost := sorted(manifest.packs - manifest.packs):\n",
        f"{MADE}::test_a_pack_that_vanishes_meanwhile_makes_no_backup",
        is_simulated=False,
    ),
    one_edit(
        "needed-pack-removed",
        "a pack that a kept backup names is not removed",
        SOURCE,
        KEEPING,
        "        needed |= each.manifest.packs\n",
        "        needed = each.manifest.packs\n",
        f"{MADE}::test_what_is_kept_stays_whole_at_whatever_point_a_removal_is_killed",
        is_simulated=False,
    ),
    one_edit(
        "packs-removed-before-manifests",
        "a manifest is removed before any pack that it alone names",
        SOURCE,
        KEEPING,
        '        store.remove(f"{BACKUPS}/{name}")\n'
        "    for name in removed.packs:\n"
        '        store.remove(f"{PACKS}/{name}")\n',
        "        pass\n"
        "    for name in removed.packs:\n"
        '        store.remove(f"{PACKS}/{name}")\n'
        "    for name in removed.backups:\n"
        '        store.remove(f"{BACKUPS}/{name}")\n',
        f"{MADE}::test_what_is_kept_stays_whole_at_whatever_point_a_removal_is_killed",
        is_simulated=False,
    ),
    one_edit(
        "removed-beside-an-unreadable-backup",
        "nothing is removed while a backup cannot be read",
        SOURCE,
        KEEPING,
        "    if unreadable:\n",
        "    if len(unreadable) > len(listed):\n",
        f"{MADE}::test_nothing_is_removed_while_a_backup_cannot_be_read",
        is_simulated=False,
    ),
    one_edit(
        "damaged-pack-restored",
        "a pack is verified by its name before anything of it is used",
        SOURCE,
        f"{FOLDER}/packs.py",
        '    if f"{sum_of(pack)}.pack" != name:\n',
        "    if not pack:\n",
        f"{RESTORED}::test_damage_in_any_pack_leaves_no_wheel",
        is_simulated=False,
    ),
    one_edit(
        "restored-behind-the-log",
        "a wheel that the buffer does not reach back to is made only for one who says so",
        SOURCE,
        RESTORING,
        "    if lines and not is_told:\n",
        "    if lines and is_told:\n",
        f"{RESTORED}::test_a_wheel_that_no_node_would_use_is_refused_unless_it_is_wanted",
        is_simulated=False,
    ),
    one_edit(
        "another-clusters-backup-restored",
        "a backup is restored only into its own cluster",
        SOURCE,
        RESTORING,
        "    if theirs != (settings.realm, settings.buffer.topic_id):\n",
        "    if theirs == ():\n",
        f"{RESTORED}::test_another_clusters_backup_is_refused",
        is_simulated=False,
    ),
    one_edit(
        "restored-over-a-wheel",
        "a wheel that is there stays",
        SOURCE,
        RESTORING,
        "            return None if wheel.progress is None else wheel.progress.offsets\n",
        "            return None if wheel.progress else (0,)\n",
        f"{RESTORED}::test_a_directory_with_a_wheel_is_refused",
        is_simulated=False,
    ),
)
