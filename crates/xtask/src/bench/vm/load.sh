# What is measured, in a guest's own filesystem and directly over NFS: the same commands of busybox ($b) in a folder
# ($d). After each step nothing is left in memory, and whoever counts has time to look: the line says what was done, in
# operations and bytes of the application.
files=2000 writes=4096 stable=400 reads=1000
step() {
    $b sync
    echo 3 >/proc/sys/vm/drop_caches
    echo "bench: over $1 $2 $3"
    $b sleep 9
}

step begin 0 0
$b mkdir $d/one
i=0; while [ $i -lt $files ]; do : >$d/one/$i; i=$((i + 1)); done
step create $files 0
i=0; while [ $i -lt $files ]; do [ -e $d/one/$i ] || echo "bench: no file $i"; i=$((i + 1)); done
step stat $files 0
$b dd if=/dev/urandom of=$d/file bs=2k count=$writes 2>/dev/null
step write $writes $((writes * 2048))
i=0; while [ $i -lt $stable ]; do
    $b dd if=/dev/urandom of=$d/stable bs=2k count=1 seek=$i conv=notrunc,fsync 2>/dev/null
    i=$((i + 1))
done
step stable $stable $((stable * 2048))
# 32,768 pieces of 2 KiB, as many as $RANDOM tells apart.
$b dd if=/dev/urandom of=$d/large bs=64k count=1024 2>/dev/null
step fill 1024 67108864
i=0; while [ $i -lt $reads ]; do
    $b dd if=$d/large of=/dev/null bs=2k count=1 skip=$RANDOM 2>/dev/null
    i=$((i + 1))
done
step read $reads $((reads * 2048))
