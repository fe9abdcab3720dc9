# A large tree, which is made by the scenario, in parts: in with cp, compared, into archives and out of them, and gone.
# All parts at once: a client that does one thing after the other mostly waits.
large_parts='0 1 2 3'

# The attributes of two trees, by name.
same_attributes() {
    attributes $2 >$scene/tmp/here-$1
    attributes $3 >$scene/tmp/there-$1
    diff $scene/tmp/here-$1 $scene/tmp/there-$1
}

# That so many files from a size on have their holes still. Those below a MiB are kept in blocks, which are there or not.
still_sparse() {
    find $1 -name 'sparse-*' -size +$2c -printf '%b %s\n' >$scene/tmp/sparse
    cat $scene/tmp/sparse
    $busybox awk -v count=$3 '$1 * 512 < $2 / 2 { n++ } END { exit n != NR || n != count }' $scene/tmp/sparse
}

# What is written through one mount is compared through the other one, which has cached nothing of it.
large_copy() {
    cp -a --sparse=always $scene/large/$1 $first/large/ || return 1
    echo "guest: copied part $1" >/dev/console
    diff -r --no-dereference $scene/large/$1 $second/large/$1 || return 1
    same_attributes $1 $scene/large/$1 $second/large/$1 || return 1
    echo "guest: compared part $1" >/dev/console
}

part_large_copy() {
    mkdir $first/large && with_each large_copy $large_parts || return 1
    takes=$(du -s --block-size=1 $second/large) || return 1
    echo "guest: the large tree takes ${takes%%[!0-9]*}" >/dev/console
    # The machine's files are seen without their holes, and cp looks for those that are as long as what it writes at once.
    still_sparse $second/large 10000000 2
}

large_tar() {
    # The machine's own may all belong to one.
    find $first/large/$1 -name '*[37]*' -exec chown -h 1000:1001 {} + || return 1
    tar -C $first/large --warning=no-timestamp --format=posix --sparse --hole-detection=raw -cf $first/large-$1.tar $1 || return 1
    echo "guest: part $1 is in an archive" >/dev/console
    tar -C $first/unpacked-large --warning=no-timestamp --numeric-owner -xpf $first/large-$1.tar || return 1
    echo "guest: unpacked part $1" >/dev/console
    diff -r --no-dereference $scene/large/$1 $second/unpacked-large/$1 || return 1
    same_attributes $1 $first/large/$1 $second/unpacked-large/$1 || return 1
    echo "guest: compared part $1 again" >/dev/console
}

part_large_tar() {
    mkdir $first/unpacked-large && with_each large_tar $large_parts || return 1
    still_sparse $second/unpacked-large 1000000 3
}

large_remove() {
    rm -rf $first/large/$1 $first/unpacked-large/$1 && rm $first/large-$1.tar || return 1
    echo "guest: removed part $1" >/dev/console
}

part_large_remove() {
    with_each large_remove $large_parts && rmdir $first/large $first/unpacked-large || return 1
    look_anew || return 1
    ls -A $second >$scene/tmp/left
    cat $scene/tmp/left
    ! grep large $scene/tmp/left
}
