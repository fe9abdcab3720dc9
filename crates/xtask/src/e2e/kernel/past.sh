# A repository with a history, which is made by the scenario, and what git on the machine's own filesystem says of it.

part_past() {
    about_git
    git init -q --bare -b main $first/past.git || return 1
    git -C $first/past.git fast-import --quiet <$scene/past || return 1
    echo "guest: imported the history" >/dev/console
    look_anew || return 1
    git -C $second/past.git log --all --format='%H %T' | sort | diff $scene/past-commits - || return 1
    git clone -q --no-local $first/past.git $first/past-clone || return 1
    echo "guest: cloned it" >/dev/console
    # This one has links to the other's objects.
    git clone -q --bare $first/past.git $first/past-linked || return 1
    look_anew || return 1
    for repository in past.git past-clone past-linked; do
        git -C $second/$repository fsck --full --strict || return 1
        echo "guest: checked $repository" >/dev/console
    done
    [ -z "$(git -C $second/past-clone status --porcelain)" ]
}

# More of it, in single objects and with merges, and then all of it in one pack.
part_past_commits() {
    clone=$first/past-clone
    for n in 1 2 3; do
        git -C $clone checkout -q -b side-$n main~$((n * 5)) || return 1
        for m in 1 2; do
            head -c $((n * m * 5000)) /dev/urandom >$clone/new-$n-$m || return 1
            git -C $clone add -A && git -C $clone commit -q -m "$n $m" || return 1
        done
        git -C $clone checkout -q main && git -C $clone merge -q --no-edit side-$n || return 1
    done
    git -C $clone gc -q --prune=now || return 1
    look_anew || return 1
    git -C $second/past-clone count-objects -v >$scene/tmp/counted
    cat $scene/tmp/counted
    grep -q '^count: 0$' $scene/tmp/counted && grep -q '^packs: 1$' $scene/tmp/counted || return 1
    git -C $second/past-clone fsck --full --strict || return 1
    [ "$(git -C $second/past-clone rev-list --count --merges origin/main..main)" = 3 ] || return 1
    git -C $second/past-clone log --remotes --format='%H %T' | sort | diff $scene/past-commits -
}

# Old commits again. What is there then is put together anew, of what the other client reads.
part_past_checkouts() {
    while read -r commit tree; do
        git -C $first/past-clone checkout -q --detach $commit && look_anew || return 1
        mkdir $scene/tmp/objects
        again=$(
            export GIT_INDEX_FILE=$scene/tmp/index GIT_OBJECT_DIRECTORY=$scene/tmp/objects
            git -C $second/past-clone add -A && git -C $second/past-clone write-tree
        )
        rm -r $scene/tmp/objects $scene/tmp/index
        [ "$again" = $tree ] || { echo "$commit has $again, not $tree"; return 1; }
        echo "guest: checked $commit out" >/dev/console
    done <$scene/past-chosen
}

part_past_remove() {
    rm -rf $first/past.git $first/past-clone $first/past-linked
}
