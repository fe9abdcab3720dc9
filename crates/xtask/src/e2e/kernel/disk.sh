# A disk image on the export, used by this kernel through a loop device. What is on it is what a virtual machine has on its
# disk, and it runs from there; beside that there are databases, a repository and trees.

# Detached at once: the device is there as long as its filesystem is mounted.
attach() {
    options=$2
    mkdir -p $scene/tmp/$1 || return 1
    device=$(losetup --find --show $options $first/$1) || return 1
    # Otherwise the kernel writes the tables of 100 GiB meanwhile, a little at a time.
    mount -t ext4 -o noinit_itable $device $scene/tmp/$1 && losetup --detach $device
}

# The last of its programs may take a moment to end.
detach() {
    n=0
    until umount $scene/tmp/$1/dev; umount $scene/tmp/$1; do
        n=$((n + 1)); [ $n -lt 50 ] || return 1; sleep 0.2
    done
}

# What the image's own machine runs, with the image for its root. To be called in the background, where it can be killed.
run_from() {
    ROUND=$2 KEPT=$kept exec chroot $scene/tmp/$1 /sbin/init
}

# Says which commits are on the disk; a commit and all that it stands on is written to it before.
add_commits_for_ever() {
    mkdir $1 && git init -q -b main $1 && git -C $1 config core.fsync all && git -C $1 config gc.auto 0
    n=0
    while n=$((n + 1)); do
        echo $n >$1/count
        head -c $((n % 5 * 4000)) /dev/urandom | od >$1/file-$((n % 7))
        git -C $1 add -A && git -C $1 commit -q -m $n && sync -f $1 || break
        echo "guest: committed git $n"
    done
    echo "guest: failed git: it has ended"
}

unpack_for_ever() {
    mkdir $1 && tar -C $scene -cf $scene/tmp/source.tar ${source##*/}
    n=0
    while n=$((n + 1)); do
        mkdir $1/$n && tar -C $1/$n -xf $scene/tmp/source.tar && sync -f $1 || break
        echo "guest: committed tar $n"
        rm -rf $1/$((n - 2))
    done
    echo "guest: failed tar: it has ended"
}

part_disk_work() {
    about_git
    # Through the cache of the client of NFS, or around it.
    attach disk.img $([ $((round % 2)) = 1 ] || echo --direct-io=on) || return 1
    work=$scene/tmp/disk.img/work-$round
    mkdir -p $work || return 1
    sync -f $work
    # Unlike NFS, ext4 may have the journal back after a crash whose removal was the commit, unless its directory is synced.
    for mode in delete wal; do commit_for_ever $mode $work EXTRA >/dev/console 2>&1 & done
    add_commits_for_ever $work/git >/dev/console 2>&1 &
    unpack_for_ever $work/tar >/dev/console 2>&1 &
    run_from disk.img $round >/dev/console 2>&1 &
    wait
}

# What is there of the work of a round, and whether it is whole.
work_in() {
    for mode in delete wal; do
        sqlite3 $3/$mode.db "PRAGMA integrity_check; SELECT 'guest: work $1 $2 $mode ' || max(n) || ' ' || count(*) ||
            ' ' || (sum(n) = (SELECT n FROM total)) FROM entry;" >$scene/tmp/checked-$1 || return 1
        cat $scene/tmp/checked-$1 >/dev/console
        [ "$(head -n 1 $scene/tmp/checked-$1)" = ok ] || return 1
    done
    git -C $3/git fsck --full --strict || return 1
    count=$(git -C $3/git show HEAD:count) || return 1
    echo "guest: work $1 $2 git $count $(git -C $3/git rev-list --count HEAD) 1" >/dev/console
    # The last one may not be complete.
    whole=0
    for tree in $(ls $3/tar | sort -rn); do
        if diff -r --no-dereference $source $3/tar/$tree/${source##*/}; then
            whole=$tree
            break
        fi
    done
    echo "guest: work $1 $2 tar $whole $whole 1" >/dev/console
}

is_clean() {
    e2fsck -f -n $first/$1 && return 0
    echo "$1 is damaged"
    return 1
}

# The original through the cache, the others around it; each has its journal replayed by then or has it now.
attach_and_look() {
    attach $1 $([ $1 = disk.img ] || echo --direct-io=on) || return 1
    for work in $scene/tmp/$1/work-*; do work_in $1 ${work##*-} $work || return 1; done
}

# Until some files are there.
run_beside() {
    said=$scene/tmp/said-$1
    run_from $1 $again >$said 2>&1 &
    running=$!
    n=0
    until grep -q "synced r$again-5 " $said; do
        n=$((n + 1)); [ $n -lt 600 ] || { cat $said; return 1; }; sleep 0.2
    done
    kill $running
    wait $running
    sed "s/^/$1: /" $said >/dev/console
}

detach_and_check() {
    detach $1 && is_clean $1
}

# Where each change of the filesystem shows.
start_of() {
    head -c 1M $1 | sha256sum
}

# The image itself, replayed by e2fsck and then looked at without a write; its copies, of which one comes from a snapshot,
# replayed by the kernel; all beside each other, as the disks of machines that run; and all again when those are gone.
part_disk_check() {
    about_git
    again=$((1000 + round))
    e2fsck -E journal_only -p $first/disk.img || [ $? -le 1 ] || return 1
    is_clean disk.img || return 1
    mkdir $scene/tmp/looked-at && mount -o ro,loop $first/disk.img $scene/tmp/looked-at || return 1
    find $scene/tmp/looked-at -type f -exec cat {} + >/dev/null || return 1
    umount $scene/tmp/looked-at || return 1

    snapshot=$second/.snapshot/round-$round/disk.img
    start=$(start_of $snapshot)
    [ "$(start_of $second/restored.img)" = "$start" ] || return 1
    with_each attach_and_look $images || return 1
    with_each run_beside $images || return 1
    with_each detach_and_check $images || return 1
    # What was done to a copy of the image in the snapshot was not done to the snapshot.
    [ "$(start_of $snapshot)" = "$start" ] || return 1
    [ "$(start_of $second/restored.img)" != "$start" ] || return 1
    # The next round has others.
    for image in $images; do [ $image = disk.img ] || rm $first/$image || return 1; done
}

part_disk_remove() {
    rm $first/disk.img
}
