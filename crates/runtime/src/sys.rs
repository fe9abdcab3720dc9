//! The system calls that neither the standard library nor the ring offers, each behind a safe
//! function.
//!
//! Together with `ring.rs`, `waker.rs` and `device/mapped.rs` this is all the unsafe code there is. A function here
//! checks its arguments, makes one call, and turns the result into `io::Result`; it keeps no state.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::ptr;

/// Connections the kernel queues on a listening socket before it refuses more, or leaves them to try again a second later. It doesn't queue more than
/// `net.core.somaxconn`, 4,096 as a rule.
const BACKLOG: libc::c_int = 4096;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// CLOCK_MONOTONIC in nanoseconds. The same on all cores and in all processes of one boot.
pub(crate) fn monotonic_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid timespec that the call fills in. The call can't fail for this
    // clock on Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    (time.tv_sec as u64) * 1_000_000_000 + time.tv_nsec as u64
}

/// Writes these one behind the other from `offset_bytes` on. How many bytes were taken, perhaps not all.
pub(crate) fn write_gathered_at(
    fd: impl AsFd,
    parts: &[io::IoSlice<'_>],
    offset_bytes: u64,
) -> io::Result<usize> {
    let offset = libc::off_t::try_from(offset_bytes).map_err(io::Error::other)?;
    let count = libc::c_int::try_from(parts.len()).map_err(io::Error::other)?;
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: an `IoSlice` is an iovec whose memory lives as long as it does, and the call only reads.
    let taken = unsafe { libc::pwritev(fd, parts.as_ptr().cast(), count, offset) };
    usize::try_from(taken).map_err(|_| io::Error::last_os_error())
}

/// Fills `bytes` (at most 256, so that the call is never cut short) from the kernel's generator. Fails with what the system says.
pub fn fill_random(bytes: &mut [u8]) -> io::Result<()> {
    assert!(
        bytes.len() <= 256,
        "longer requests may be cut short by a signal"
    );
    loop {
        // SAFETY: pointer and length describe `bytes`, which the call writes within its length.
        let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        if got == bytes.len() as isize {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if got >= 0 || error.kind() == io::ErrorKind::Interrupted {
            continue;
        }
        return Err(error);
    }
}

/// The CPUs this thread may run on, in ascending order.
pub(crate) fn allowed_cpus() -> io::Result<Vec<usize>> {
    // SAFETY: a cpu_set_t is an array of integers, for which all zeros is a value.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: `set` is valid for writes of the size that is passed.
    check(unsafe { libc::sched_getaffinity(0, mem::size_of_val(&set), &mut set) })?;
    let count = libc::CPU_SETSIZE as usize;
    // SAFETY: CPU_ISSET reads the bit `cpu` of the set, which has CPU_SETSIZE bits.
    Ok((0..count)
        .filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) })
        .collect())
}

/// Restricts this thread to `cpus`.
pub(crate) fn set_affinity(cpus: &[usize]) -> io::Result<()> {
    // SAFETY: as in `allowed_cpus`.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    for &cpu in cpus {
        if cpu >= libc::CPU_SETSIZE as usize {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "CPU {cpu} is beyond the {} this program can name",
                    libc::CPU_SETSIZE
                ),
            ));
        }
        // SAFETY: `cpu` lies within the set (checked above).
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: `set` is valid for reads of the size that is passed.
    check(unsafe { libc::sched_setaffinity(0, mem::size_of_val(&set), &set) }).map(drop)
}

/// A new eventfd. Blocking on purpose: the ring then waits for it instead of failing with EAGAIN.
pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: no pointers are involved.
    let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) })?;
    // SAFETY: the call just created this descriptor, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Takes ownership of the descriptor that an accept operation has put into its completion.
pub(crate) fn accepted_fd(completion_result: i32) -> OwnedFd {
    assert!(
        completion_result >= 0,
        "a failed accept carries no descriptor"
    );
    // SAFETY: the kernel installed this descriptor for this completion, which is handled once, so
    // nobody else owns it.
    unsafe { OwnedFd::from_raw_fd(completion_result) }
}

/// Switches O_NONBLOCK off: on such a socket the ring fails with EAGAIN instead of waiting.
pub(crate) fn set_blocking(fd: impl AsFd) -> io::Result<()> {
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: F_GETFL and F_SETFL take and give integers only.
    let flags = check(unsafe { libc::fcntl(fd, libc::F_GETFL) })?;
    if flags & libc::O_NONBLOCK != 0 {
        // SAFETY: as above.
        check(unsafe { libc::fcntl(fd, libc::F_SETFL, flags & !libc::O_NONBLOCK) })?;
    }
    Ok(())
}

/// What direct I/O on an open file wants: alignment of memory and of offsets and lengths, in
/// bytes. `None` if the kernel (before 6.1) or the filesystem doesn't say; zeros if the file can't
/// do direct I/O.
pub(crate) fn direct_alignment(fd: impl AsFd) -> Option<(u32, u32)> {
    // SAFETY: a statx is made of integers, for which all zeros is a value.
    let mut stat: libc::statx = unsafe { mem::zeroed() };
    let empty = c"".as_ptr();
    // SAFETY: `empty` is a terminated string and `stat` is valid for writes.
    let result = unsafe {
        libc::statx(
            fd.as_fd().as_raw_fd(),
            empty,
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            &mut stat,
        )
    };
    if result < 0 || stat.stx_mask & libc::STATX_DIOALIGN == 0 {
        return None;
    }
    Some((stat.stx_dio_mem_align, stat.stx_dio_offset_align))
}

/// Gives a range of a regular file back to its filesystem; it then reads as zeros.
pub(crate) fn punch_hole(fd: impl AsFd, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
    let (offset, len) = signed_range(offset_bytes, len_bytes)?;
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: no pointers are involved.
    check(unsafe { libc::fallocate(fd.as_fd().as_raw_fd(), mode, offset, len) }).map(drop)
}

/// Where the first hole of a file at or behind `offset_bytes` begins; the file's end if there is none.
/// Space that was set aside and not written yet is a hole.
pub(crate) fn next_hole(fd: impl AsFd, offset_bytes: u64) -> io::Result<u64> {
    let (offset, _) = signed_range(offset_bytes, 0)?;
    // SAFETY: no pointers are involved.
    let hole = unsafe { libc::lseek(fd.as_fd().as_raw_fd(), offset, libc::SEEK_HOLE) };
    u64::try_from(hole).map_err(|_| io::Error::last_os_error())
}

/// Where the first bytes of a file at or behind `offset_bytes` are that were written; `None` if there are none.
pub(crate) fn next_data(fd: impl AsFd, offset_bytes: u64) -> io::Result<Option<u64>> {
    let (offset, _) = signed_range(offset_bytes, 0)?;
    // SAFETY: no pointers are involved.
    let data = unsafe { libc::lseek(fd.as_fd().as_raw_fd(), offset, libc::SEEK_DATA) };
    match u64::try_from(data) {
        Ok(data) => Ok(Some(data)),
        Err(_) => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
            error => Err(error),
        },
    }
}

/// Asks the kernel to drop clean pages of a file from the page cache. A hint.
pub(crate) fn drop_cached_pages(fd: impl AsFd) {
    // SAFETY: no pointers are involved.
    unsafe { libc::posix_fadvise(fd.as_fd().as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

/// Allocates the blocks of a range of a regular file without writing them. What it holds stays; what
/// is beyond the file's end is added to it.
pub(crate) fn preallocate(fd: impl AsFd, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
    let (offset, len) = signed_range(offset_bytes, len_bytes)?;
    // SAFETY: no pointers are involved.
    check(unsafe { libc::fallocate(fd.as_fd().as_raw_fd(), 0, offset, len) }).map(drop)
}

/// Has the kernel hold at most about so many bytes of a TCP connection that it hasn't sent yet: whoever writes more waits.
pub(crate) fn limit_unsent(fd: impl AsFd, bytes: u32) -> io::Result<()> {
    let len = mem::size_of::<u32>() as libc::socklen_t;
    // SAFETY: the option is an integer, and `bytes` one that is valid for reads.
    check(unsafe {
        libc::setsockopt(
            fd.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_NOTSENT_LOWAT,
            (&raw const bytes).cast(),
            len,
        )
    })
    .map(drop)
}

/// The number of the interface that a TCP connection came by which was accepted: that of the packet which ended its handshake, which the kernel
/// keeps with the connection. `None` if it doesn't say.
pub(crate) fn interface_of(fd: impl AsFd, is_ipv6: bool) -> Option<u32> {
    let fd = fd.as_fd().as_raw_fd();
    // What is to be asked for, what tells it then, and where in that the interface stands: ip(7) and, as it was before RFC 3542, ipv6(7).
    let (level, wish, told, at) = match is_ipv6 {
        false => (libc::IPPROTO_IP, libc::IP_PKTINFO, libc::IP_PKTOPTIONS, 0),
        true => (
            libc::IPPROTO_IPV6,
            libc::IPV6_RECVPKTINFO,
            libc::IPV6_2292PKTOPTIONS,
            16,
        ),
    };
    let ask = |is_wished: libc::c_int| {
        let len = mem::size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the option is an integer, and `is_wished` one that is valid for reads.
        check(unsafe { libc::setsockopt(fd, level, wish, (&raw const is_wished).cast(), len) })
    };
    ask(1).ok()?;
    let mut bytes = [0_u8; 128];
    let mut len = bytes.len() as libc::socklen_t;
    // SAFETY: `bytes` is valid for writes of `len`, which the call lessens to what it has written.
    let got =
        check(unsafe { libc::getsockopt(fd, level, told, bytes.as_mut_ptr().cast(), &mut len) });
    // Else the kernel would keep each packet of IPv6 twice from now on.
    let ended = ask(0);
    (got.is_ok() && ended.is_ok()).then_some(())?;
    let told = bytes.get(..len as usize)?;
    interface_in(told, at + mem::size_of::<libc::cmsghdr>())
}

/// The interface of the first control message, which is the only one, if the kernel knows it.
fn interface_in(message: &[u8], at: usize) -> Option<u32> {
    let bytes = message.get(at..at + mem::size_of::<u32>())?;
    let interface = u32::from_ne_bytes(bytes.try_into().ok()?);
    Some(interface).filter(|&interface| interface > 0)
}

/// An address of this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InterfaceAddress {
    /// The address.
    pub address: IpAddr,
    /// How many of its first bits are those of its network; all of them if nothing is said of that.
    pub network_bits: u32,
    /// The number of the interface that has it.
    pub interface: u32,
    /// Nothing comes by that interface from outside: it is there for addresses that the machine has on all of them.
    pub is_inner: bool,
}

/// All addresses of this machine's interfaces. Fails with what the system says.
pub fn interface_addresses() -> io::Result<Vec<InterfaceAddress>> {
    let mut first: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: `first` is valid for writes; what it is given is freed below.
    check(unsafe { libc::getifaddrs(&mut first) })?;
    let mut found = Vec::new();
    let mut at: *const libc::ifaddrs = first;
    // SAFETY: the list ends with a null pointer, and nobody changes it.
    while let Some(one) = unsafe { at.as_ref() } {
        at = one.ifa_next;
        // SAFETY: an address is null or one of the family that it names.
        let Some(address) = (unsafe { address_in(one.ifa_addr) }) else {
            continue;
        };
        // SAFETY: the name is a terminated string that lives as long as the list.
        let name = unsafe { CStr::from_ptr(one.ifa_name) };
        let Some(interface) = interface_named(name) else {
            continue;
        };
        // SAFETY: as above.
        let mask = unsafe { address_in(one.ifa_netmask) };
        let has = |flag: libc::c_int| one.ifa_flags & flag as libc::c_uint != 0;
        // Of the second kind are dummies; tunnels have it, too, but are from one point to another.
        let is_dummy = has(libc::IFF_NOARP) && !has(libc::IFF_POINTOPOINT);
        found.push(InterfaceAddress {
            address,
            network_bits: match mask {
                Some(IpAddr::V4(mask)) => mask.to_bits().leading_ones(),
                Some(IpAddr::V6(mask)) => mask.to_bits().leading_ones(),
                None => u32::from(u8::MAX),
            },
            interface,
            is_inner: has(libc::IFF_LOOPBACK) || is_dummy,
        });
    }
    // SAFETY: it came from getifaddrs, and nothing of it is used any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// # Safety
/// `address` is null or points to an address of the family that it names.
unsafe fn address_in(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller's promise.
    let family = libc::c_int::from(unsafe { address.as_ref() }?.sa_family);
    match family {
        libc::AF_INET => {
            // SAFETY: as the family says. It need not be aligned for it.
            let address: libc::sockaddr_in = unsafe { ptr::read_unaligned(address.cast()) };
            let bits = u32::from_be(address.sin_addr.s_addr);
            Some(Ipv4Addr::from_bits(bits).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let address: libc::sockaddr_in6 = unsafe { ptr::read_unaligned(address.cast()) };
            Some(Ipv6Addr::from(address.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

/// The number of an interface. What follows a colon is the label of an address.
fn interface_named(name: &CStr) -> Option<u32> {
    let name = name.to_bytes().split(|&byte| byte == b':').next()?;
    let name = CString::new(name).ok()?;
    // SAFETY: `name` is a terminated string.
    let interface = unsafe { libc::if_nametoindex(name.as_ptr()) };
    Some(interface).filter(|&interface| interface > 0)
}

/// Whether a file lies in memory (tmpfs or ramfs): nothing of it is ever waited for.
pub(crate) fn is_in_memory(fd: impl AsFd) -> bool {
    // SAFETY: a statfs is an array of integers, for which all zeros is a value.
    let mut stat: libc::statfs = unsafe { mem::zeroed() };
    // SAFETY: `stat` is valid for writes; the descriptor is open.
    let found = check(unsafe { libc::fstatfs(fd.as_fd().as_raw_fd(), &mut stat) });
    const RAMFS_MAGIC: i64 = 0x8584_58f6;
    found.is_ok() && matches!(stat.f_type, libc::TMPFS_MAGIC | RAMFS_MAGIC)
}

/// Bytes that the filesystem of an open file still has for an unprivileged process.
pub(crate) fn filesystem_free_bytes(fd: impl AsFd) -> io::Result<u64> {
    // SAFETY: a statvfs is an array of integers, for which all zeros is a value.
    let mut stat: libc::statvfs = unsafe { mem::zeroed() };
    // SAFETY: `stat` is valid for writes, and the descriptor is open while it is borrowed.
    check(unsafe { libc::fstatvfs(fd.as_fd().as_raw_fd(), &mut stat) })?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

fn signed_range(offset_bytes: u64, len_bytes: u64) -> io::Result<(i64, i64)> {
    let convert = |value: u64| {
        i64::try_from(value).map_err(|_| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "a file range beyond 2^63 bytes",
            )
        })
    };
    Ok((convert(offset_bytes)?, convert(len_bytes)?))
}

/// Tells a block device that a range holds nothing worth keeping.
pub(crate) fn discard_blocks(fd: impl AsFd, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
    // _IO(0x12, 119), the same on every architecture.
    const BLKDISCARD: libc::Ioctl = 0x1277;
    let range = [offset_bytes, len_bytes];
    // SAFETY: BLKDISCARD reads two u64 through the pointer, which is what `range` holds.
    check(unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), BLKDISCARD, range.as_ptr()) }).map(drop)
}

/// An empty message header.
pub(crate) fn empty_message_header() -> libc::msghdr {
    // SAFETY: a msghdr is made of integers and raw pointers, for which all zeros is a value (no
    // name, no data, no control data).
    unsafe { mem::zeroed() }
}

/// Lets this process have as many files open as the system allows without asking anybody, and says how many that is. Where nobody has set
/// anything else a process begins with 1,024, as `select` can't tell of more, and each connection is one.
pub fn raise_open_files() -> io::Result<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is valid for writes.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) })?;
    if limit.rlim_cur < limit.rlim_max {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: `limit` is valid for reads.
        check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) })?;
    }
    Ok(limit.rlim_cur)
}

/// Has the kernel queue as many connections on a socket that listens already as on those of [`listen_unix`]: the standard library's queue
/// 128, and of a thousand clients that come back at once most would wait for a second and longer.
pub(crate) fn queue_more(socket: &TcpListener) -> io::Result<()> {
    // SAFETY: no pointers are involved.
    check(unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) }).map(drop)
}

/// Binds a Unix socket at `path` and listens on it. The file gets `mode` from its first moment,
/// so there is no instant at which others could connect.
pub(crate) fn listen_unix(path: &Path, mode: libc::mode_t) -> io::Result<UnixListener> {
    let (address, address_len) = unix_address(path.as_os_str())?;
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers are involved.
    let fd = check(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?;
    // SAFETY: the call just created this descriptor, and nobody else knows it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // Linux gives the file that bind makes the mode of the unbound socket.
    // SAFETY: no pointers are involved.
    check(unsafe { libc::fchmod(socket.as_raw_fd(), mode) })?;
    // SAFETY: `address` is a sockaddr_un of which the first `address_len` bytes are filled in.
    check(unsafe {
        libc::bind(
            socket.as_raw_fd(),
            ptr::from_ref(&address).cast(),
            address_len,
        )
    })?;
    // SAFETY: no pointers are involved.
    check(unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) })?;
    Ok(UnixListener::from(socket))
}

fn unix_address(path: &OsStr) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: a sockaddr_un is made of integers, for which all zeros is a value.
    let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_bytes();
    // One byte stays zero as the terminator.
    if bytes.is_empty() || bytes.contains(&0) || bytes.len() >= address.sun_path.len() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "{} can't name a Unix socket: 1 to {} bytes without a zero are allowed",
                path.display(),
                address.sun_path.len() - 1
            ),
        ));
    }
    for (to, &from) in address.sun_path.iter_mut().zip(bytes) {
        *to = from as libc::c_char;
    }
    let header = mem::offset_of!(libc::sockaddr_un, sun_path);
    Ok((address, (header + bytes.len() + 1) as libc::socklen_t))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_clock_advances_and_random_bytes_differ() {
        let before = monotonic_ns();
        let (mut a, mut b) = ([0u8; 32], [0u8; 32]);
        fill_random(&mut a).unwrap();
        fill_random(&mut b).unwrap();
        assert_ne!(a, b);
        assert!(monotonic_ns() >= before);
        assert!(before > 0);
    }

    #[test]
    fn affinity_is_what_was_set() {
        let all = allowed_cpus().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                set_affinity(&all[..1]).unwrap();
                assert_eq!(allowed_cpus().unwrap(), all[..1]);
            });
        });
        assert!(set_affinity(&[1 << 20]).is_err());
    }

    #[test]
    fn a_unix_socket_has_its_mode_and_long_paths_are_refused() {
        let path = std::env::temp_dir().join(format!("fs-sys-{}.sock", std::process::id()));
        let listener = listen_unix(&path, 0o600).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(listener);
        std::fs::remove_file(&path).unwrap();
        let long = std::env::temp_dir().join("x".repeat(120));
        assert_eq!(
            listen_unix(&long, 0o600).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
    }
}
