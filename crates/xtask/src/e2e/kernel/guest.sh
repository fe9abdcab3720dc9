# What a guest with the kernel's NFS client does. The lines before this one say where things are and which parts to do.
# The root folder is the machine's own, to be read only; what can be written is $scene/tmp, in the guest's memory, and
# what is mounted.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=$scene/tmp TMPDIR=$scene/tmp LC_ALL=C
cd /
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev 2>/dev/null
mkdir -p /dev/shm && mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs $scene/tmp
ulimit -c 0
for module in $modules; do $busybox insmod $module || echo "guest: no module $module"; done
$busybox ip link set lo up
$busybox ip addr add $address/24 dev $device
$busybox ip link set $device up
first=$scene/first
second=$scene/second

part_plain_mount() {
    # Without an option saying otherwise the kernel wants locks, and with them this service, though nobody locks here.
    mkdir /run/rpcbind $scene/tmp/statd $scene/tmp/statd/sm $scene/tmp/statd/sm.bak
    rpcbind || return 1
    n=0; until rpcinfo -p >/dev/null 2>&1; do n=$((n + 1)); [ $n -lt 50 ] || return 1; sleep 0.1; done
    $statd --no-notify --state-directory-path $scene/tmp/statd || return 1
    n=0; until rpcinfo -p | grep -q status; do n=$((n + 1)); [ $n -lt 50 ] || return 1; sleep 0.1; done
    $mount_nfs $server:/$filesystem $first || return 1
    grep " $first nfs .*vers=3.*hard" /proc/mounts
}

# The node may be down for a moment. Then mount.nfs, which tries version 4 first, gives up for what that was answered.
mount_patiently() {
    n=0
    until $mount_nfs "$@"; do n=$((n + 1)); [ $n -lt 50 ] || return 1; sleep 0.2; done
}

part_mount() {
    mount_patiently $server:/$filesystem $first -o nolock
}

# As another machine would: nothing of what the first mount has cached.
apart=nosharecache,noac,lookupcache=none,nordirplus
part_second_mount() {
    mount_patiently $server:/$filesystem $second -o nolock,$apart
}

# Caches, but nothing that the first one has.
part_cold_mount() {
    mount_patiently $server:/$filesystem $second -o nolock,nosharecache
}

# Without what it has seen so far.
look_anew() {
    umount $second && part_cold_mount
}

# Both again, where answers are lost.
part_relayed_mounts() {
    umount $first && umount $second || return 1
    relayed=vers=3,proto=tcp,nolock,port=$relay,mountport=$relay,mountproto=tcp
    $mount_nfs $server:/$filesystem $first -o $relayed || return 1
    $mount_nfs $server:/$filesystem $second -o $relayed,$apart
}

# Name, type, mode, owner, links, size and time of everything. A directory's size is its filesystem's business.
attributes() {
    (cd $1 && find . -type d -printf '%p %y %m %U:%G %n %T@\n' -o -printf '%p %y %m %U:%G %n %s %T@ %l\n' -type c -exec stat -c '%n %t:%T' {} + | sort)
}

part_copy() {
    # A tree with everything that a tree can have, beside real files.
    made=$scene/tmp/made
    mkdir -p $made/folder/empty
    echo one >$made/file
    ln $made/file $made/folder/hard-link
    ln -s ../file $made/folder/link
    ln -s nowhere $made/dangling
    mknod $made/pipe p
    mknod $made/device c 1 3
    : >"$made/name with spaces and $(printf '\303\244')"
    : >$made/$(printf '%255s' '' | tr ' ' n)
    chmod 4711 $made/file
    chown -h 1000:1001 $made/dangling
    touch -d '2001-02-03 04:05:06.123456789' $made/folder/empty
    cp -a $made $first/made || return 1
    cp -a $source $first/tree || return 1
    for mount in $first $second; do
        for pair in "$made made" "$source tree"; do
            set -- $pair
            # Of pipes and devices diff knows only that it can't compare them.
            diff -r --no-dereference -x pipe -x device $1 $mount/$2 || return 1
            attributes $1 >$scene/tmp/here
            attributes $mount/$2 >$scene/tmp/there
            diff $scene/tmp/here $scene/tmp/there || return 1
        done
    done
}

part_tar() {
    mkdir $first/unpacked $first/removed
    rmdir $second/removed || return 1
    tar -C $first -cf $first/tree.tar made tree || return 1
    tar -C $first/unpacked --numeric-owner -xpf $first/tree.tar || return 1
    diff -r --no-dereference $first/tree $second/unpacked/tree || return 1
    tar -C $second --numeric-owner -df $second/tree.tar || return 1
}

about_git() {
    git config --global user.name nobody
    git config --global user.email nobody@localhost
    git config --global --add safe.directory '*'
}

part_git() {
    about_git
    git init -q $first/tree || return 1
    git -C $first/tree add -A || return 1
    git -C $first/tree commit -q -m all || return 1
    git clone -q --no-local $first/tree $first/clone || return 1
    git -C $first/clone fsck --full --strict || return 1
    git -C $first/clone gc -q || return 1
    git -C $second/clone fsck --full --strict || return 1
    [ -z "$(git -C $second/clone status --porcelain)" ] || return 1
    diff -r -x .git $source $second/clone
}

part_compile() {
    mkdir $first/compiled
    cd $first/compiled
    {
        for n in 1 2 3; do
            echo "int f$n(int x) { return x * $n; }" >f$n.c
            echo "int f$n(int);"
        done
        echo 'int main(void) { return f1(1) + f2(10) + f3(100) == 321 ? 0 : 1; }'
    } >main.c
    for n in f1 f2 f3 main; do cc -O1 -g -c -o $n.o $n.c || return 1; done
    ar rcs libf.a f1.o f2.o f3.o && cc -o main main.o libf.a || return 1
    cd /
    $second/compiled/main
}

# What the kernel writes back of mapped memory.
part_mapped() {
    fio --name=mapped --directory=$first --ioengine=mmap --rw=randwrite --bsrange=4k-64k \
        --size=6M --io_size=12M --fsync=64 --verify=crc32c --do_verify=0 --thread --randseed=$seed || return 1
    echo 3 >/proc/sys/vm/drop_caches
    fio --name=mapped --directory=$first --ioengine=mmap --rw=randwrite --bsrange=4k-64k \
        --size=6M --io_size=12M --verify=crc32c --verify_only --thread --randseed=$seed
}

part_histories() {
    mkdir $first/histories $scene/tmp/reference
    $xtask in-guest --first $first/histories --second $second/histories --reference $scene/tmp/reference \
        --seconds $seconds --seed $seed >/dev/console 2>&1
}

# What `cargo xtask bench vm` measures; the script is put there by it.
part_bench() {
    mkdir $first/direct || return 1
    b=$busybox d=$first/direct $busybox sh $scene/load.sh >/dev/console 2>&1
}

# That the parts before have had the client use each procedure of NFS.
part_procedures() {
    [ "$(stat -f -c %s $first)" -gt 0 ] || return 1
    grep -v ' 0 0 0 0 0 0 0 0' /proc/self/mountstats
    unused=
    for name in NULL GETATTR SETATTR LOOKUP ACCESS READLINK READ WRITE CREATE MKDIR SYMLINK MKNOD REMOVE RMDIR RENAME \
        LINK READDIR READDIRPLUS FSSTAT FSINFO PATHCONF COMMIT; do
        grep -q "^[[:space:]]*$name: [1-9]" /proc/self/mountstats || unused="$unused $name"
    done
    echo "not used:$unused"
    [ -z "$unused" ]
}

# One job for each of some words, all at once. Fails if one of them does.
with_each() {
    job=$1
    shift
    waiting=
    for word in "$@"; do
        $job $word &
        waiting="$waiting $!"
    done
    failed=0
    for number in $waiting; do wait $number || failed=1; done
    return $failed
}

# Commits until the machine is killed, and says which are durable. One database has a rollback journal, one a log.
commit_for_ever() {
    {
        echo "PRAGMA journal_mode=$1; PRAGMA synchronous=$3;"
        echo 'CREATE TABLE entry (n INTEGER PRIMARY KEY, content BLOB); CREATE TABLE total (n INTEGER);'
        echo 'INSERT INTO total VALUES (0);'
        $busybox awk -v db=$1 'BEGIN { for (n = 1; n < 1000000; n++) {
            print "BEGIN; INSERT INTO entry VALUES (" n ", randomblob(" n % 40 * 150 "));"
            print "UPDATE total SET n = n + " n "; COMMIT; SELECT '"'guest: committed '"' || '"'"'" db " " n "'"'"';" } }'
    } | sqlite3 -bail $2/$1.db
    echo "guest: failed sqlite: $1 has ended"
}

part_sqlite() {
    mkdir $first/db
    for mode in delete wal; do commit_for_ever $mode $first/db FULL >/dev/console 2>&1 & done
    wait
}

part_sqlite_check() {
    for mode in delete wal; do
        sqlite3 $first/db/$mode.db "PRAGMA integrity_check; SELECT 'guest: database $mode ' || max(n) || ' ' || count(*) ||
            ' ' || (sum(n) = (SELECT n FROM total)) FROM entry;" >$scene/tmp/checked || return 1
        cat $scene/tmp/checked >/dev/console
        [ "$(head -n 1 $scene/tmp/checked)" = ok ] || return 1
    done
}

# The filesystems in images: whole once their journals are replayed, and each file is in them that must be.
part_images() {
    checked=
    for item in $images; do
        IFS=: read -r image name hash <<END
$item
END
        case "$checked " in
        *" $image "*) ;;
        *)
            e2fsck -E journal_only -p $first/$image || [ $? -le 1 ] || return 1
            e2fsck -f -n $first/$image || return 1
            checked="$checked $image"
            ;;
        esac
        found=$(debugfs -R "cat data/$name" $first/$image | sha256sum)
        [ "${found%% *}" = $hash ] || { echo "$name in $image is $found, not $hash"; return 1; }
    done
}

for part in $parts; do
    began=$(date +%s%N)
    if part_$part >$scene/tmp/log 2>&1; then
        echo "guest: passed $part in $((($(date +%s%N) - began) / 1000000)) ms"
    else
        # Names may be anything.
        tail -n 30 $scene/tmp/log | cat -v | cut -c 1-400
        echo "guest: failed $part"
        break
    fi
done
cd /
umount $second $first 2>/dev/null
echo "guest: over"
$busybox poweroff -f
