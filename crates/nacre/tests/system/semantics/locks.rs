//! POSIX and BSD locks, between processes and between mounts.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc::{self, F_RDLCK, F_UNLCK, F_WRLCK, SEEK_SET};
use rustix::fs::{FlockOperation, flock};

use crate::semantics::two_mounts::TwoMounts;

fn open(mount: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.open(mount.join("f")).unwrap()
}

/// A lock of `len` bytes from `start`; with `len` 0, to the end of the file, even if it grows.
fn range(ty: i32, start: i64, len: i64) -> libc::flock {
    libc::flock {
        l_type: ty as i16,
        l_whence: SEEK_SET as i16,
        l_start: start,
        l_len: len,
        l_pid: 0,
    }
}

fn setlk(f: impl AsFd, ty: i32, start: i64, len: i64) -> Result<(), Errno> {
    fcntl(f, FcntlArg::F_SETLK(&range(ty, start, len))).map(drop)
}

fn setlkw(f: impl AsFd, ty: i32, start: i64, len: i64) -> Result<(), Errno> {
    fcntl(f, FcntlArg::F_SETLKW(&range(ty, start, len))).map(drop)
}

fn ofd_setlk(f: impl AsFd, ty: i32, start: i64, len: i64) -> Result<(), Errno> {
    fcntl(f, FcntlArg::F_OFD_SETLK(&range(ty, start, len))).map(drop)
}

/// The conflicting lock: its type, start and length.
fn conflicting_lock(f: impl AsFd, ty: i32, start: i64, len: i64) -> Option<(i32, i64, i64)> {
    let mut lock = range(ty, start, len);
    fcntl(f, FcntlArg::F_GETLK(&mut lock)).unwrap();
    let ty = i32::from(lock.l_type);
    (ty != F_UNLCK).then_some((ty, lock.l_start, lock.l_len))
}

#[test]
fn range_locks_are_split_and_merged_between_mounts() {
    let env = TwoMounts::new();
    let (a, b) = (open(&env.a), open(&env.b));
    setlk(&a, F_WRLCK, 10, 10).unwrap();
    assert_eq!(setlk(&b, F_RDLCK, 15, 1), Err(Errno::EAGAIN));
    assert_eq!(setlk(&b, F_WRLCK, 0, 0), Err(Errno::EAGAIN));
    assert_eq!(conflicting_lock(&b, F_RDLCK, 0, 100), Some((F_WRLCK, 10, 10)));
    setlk(&b, F_WRLCK, 0, 10).unwrap();
    setlk(&b, F_WRLCK, 20, 0).unwrap();
    // A lock to the end covers later offsets; unlocking the middle of a range leaves two ranges.
    assert_eq!(setlk(&a, F_WRLCK, 1 << 40, 1), Err(Errno::EAGAIN));
    setlk(&a, F_UNLCK, 14, 2).unwrap();
    setlk(&b, F_WRLCK, 14, 2).unwrap();
    assert_eq!(conflicting_lock(&b, F_WRLCK, 10, 4), Some((F_WRLCK, 10, 4)));
    assert_eq!(conflicting_lock(&b, F_WRLCK, 16, 4), Some((F_WRLCK, 16, 4)));
    // A lock can be downgraded, and upgraded unless another lock conflicts.
    setlk(&a, F_RDLCK, 10, 4).unwrap();
    setlk(&b, F_RDLCK, 10, 4).unwrap();
    assert_eq!(setlk(&a, F_WRLCK, 10, 4), Err(Errno::EAGAIN));
    setlk(&b, F_UNLCK, 0, 0).unwrap();
    setlk(&a, F_WRLCK, 0, 0).unwrap();
    assert_eq!(conflicting_lock(&b, F_RDLCK, 0, 0), Some((F_WRLCK, 0, 0)));
}

/// POSIX: any close of a file by a process releases all locks of the process on it.
#[test]
fn close_releases_the_locks_of_the_process() {
    let env = TwoMounts::new();
    let (a, b) = (open(&env.a), open(&env.b));
    setlk(&a, F_WRLCK, 0, 0).unwrap();
    drop(open(&env.a));
    setlk(&b, F_WRLCK, 0, 0).unwrap();
}

#[test]
fn waiter_gets_the_lock_when_it_is_free() {
    let env = TwoMounts::new();
    let (a, b) = (open(&env.a), open(&env.b));
    setlk(&a, F_WRLCK, 0, 0).unwrap();
    let (sender, receiver) = mpsc::channel();
    thread::scope(|s| {
        s.spawn(|| sender.send(setlkw(&b, F_WRLCK, 5, 5)).unwrap());
        assert!(
            receiver.recv_timeout(Duration::from_millis(300)).is_err(),
            "the lock was granted despite a conflict"
        );
        setlk(&a, F_UNLCK, 0, 5).unwrap();
        assert!(
            receiver.recv_timeout(Duration::from_millis(300)).is_err(),
            "the lock was granted despite a conflict"
        );
        setlk(&a, F_UNLCK, 5, 5).unwrap();
        receiver.recv().unwrap().unwrap();
    });
    assert_eq!(setlk(&a, F_RDLCK, 7, 1), Err(Errno::EAGAIN));
}

#[test]
fn deadlock_returns_edeadlk() {
    let env = TwoMounts::new();
    let (a, b) = (open(&env.a), open(&env.b));
    setlk(&a, F_WRLCK, 0, 1).unwrap();
    setlk(&b, F_WRLCK, 1, 1).unwrap();
    // The process with EDEADLK releases its locks, so that the other one can continue.
    let waiter = |f: &File, byte: i64| {
        let result = setlkw(f, F_WRLCK, byte, 1);
        setlk(f, F_UNLCK, 0, 0).unwrap();
        result
    };
    let results = thread::scope(|s| {
        let (first, second) = (s.spawn(|| waiter(&a, 1)), s.spawn(|| waiter(&b, 0)));
        [first.join().unwrap(), second.join().unwrap()]
    });
    assert!(
        results.contains(&Ok(())) && results.contains(&Err(Errno::EDEADLK)),
        "{results:?}"
    );
}

/// Each process holds its lock through one mount and waits through the other, so the cycle has lock
/// owners of both mounts.
#[test]
fn deadlock_through_two_mounts_returns_edeadlk() {
    let env = TwoMounts::new();
    // Locks a byte through one mount, reports it, and then waits for the other byte through the
    // other mount.
    let program = "import fcntl, sys\n\
        held, wanted = open(sys.argv[1], 'r+'), open(sys.argv[2], 'r+')\n\
        fcntl.lockf(held, fcntl.LOCK_EX, 1, int(sys.argv[3]))\n\
        print('locked', flush=True)\n\
        sys.stdin.readline()\n\
        try: fcntl.lockf(wanted, fcntl.LOCK_EX, 1, 1 - int(sys.argv[3])); print('granted')\n\
        except OSError as e: print(e.errno)\n";
    let (a, b) = (open(&env.a), open(&env.b));
    drop((a, b));
    let file = |mount: &Path| mount.join("f").into_os_string();
    let start = |held: &Path, wanted: &Path, byte: &str| {
        Command::new("python3")
            .args(["-c", program])
            .args([file(held), file(wanted), byte.into()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let mut processes = [start(&env.a, &env.b, "0"), start(&env.b, &env.a, "1")];
    let mut answers = processes
        .each_mut()
        .map(|p| BufReader::new(p.stdout.take().unwrap()).lines());
    for lines in &mut answers {
        assert_eq!(lines.next().unwrap().unwrap(), "locked");
    }
    for process in &mut processes {
        process.stdin.take().unwrap().write_all(b"go on\n").unwrap();
    }
    let mut results = answers.map(|mut lines| lines.next().unwrap().unwrap());
    results.sort();
    // The process with EDEADLK ends, so that the other one continues.
    assert_eq!(results, [libc::EDEADLK.to_string(), "granted".to_owned()]);
    for process in &mut processes {
        assert!(process.wait().unwrap().success());
    }
}

/// BSD locks belong to an open file description.
#[test]
fn flock_belongs_to_the_open_file() {
    let env = TwoMounts::new();
    let (a, b, other) = (open(&env.a), open(&env.b), open(&env.a));
    let set_lock = |f: &File, how| flock(f, how);
    use FlockOperation::{NonBlockingLockExclusive, NonBlockingLockShared, Unlock};
    set_lock(&a, NonBlockingLockExclusive).unwrap();
    for f in [&b, &other] {
        assert_eq!(set_lock(f, NonBlockingLockShared), Err(rustix::io::Errno::AGAIN));
    }
    set_lock(&a, NonBlockingLockShared).unwrap();
    set_lock(&b, NonBlockingLockShared).unwrap();
    assert_eq!(
        set_lock(&b, NonBlockingLockExclusive),
        Err(rustix::io::Errno::AGAIN)
    );
    // Closing another open file or a duplicate does not release the lock.
    drop((other, a.try_clone().unwrap()));
    set_lock(&b, Unlock).unwrap();
    assert_eq!(
        set_lock(&b, NonBlockingLockExclusive),
        Err(rustix::io::Errno::AGAIN)
    );
    drop(a);
    set_lock(&b, FlockOperation::LockExclusive).unwrap();
}

/// At the last close, the kernel does not wait until the client has released the locks. The client
/// must release them before it handles the next lock request.
#[test]
fn last_close_releases_the_locks_of_the_open_file_before_the_next_request() {
    let env = TwoMounts::new();
    for i in 0..300 {
        let f = open(&env.a);
        match i % 2 {
            0 => flock(&f, FlockOperation::NonBlockingLockExclusive).unwrap(),
            _ => ofd_setlk(&f, F_WRLCK, 0, 10).unwrap(),
        }
        drop(f);
        assert_eq!(conflicting_lock(open(&env.a), F_WRLCK, 0, 10), None, "{i}");
    }
}

#[test]
fn open_file_description_locks_have_ranges() {
    let env = TwoMounts::new();
    let (a, second, b) = (open(&env.a), open(&env.a), open(&env.b));
    ofd_setlk(&a, F_WRLCK, 0, 10).unwrap();
    for f in [&second, &b] {
        assert_eq!(ofd_setlk(f, F_WRLCK, 5, 10), Err(Errno::EAGAIN));
        ofd_setlk(f, F_RDLCK, 10, 5).unwrap();
    }
    drop(a);
    fcntl(&b, FcntlArg::F_OFD_SETLKW(&range(F_WRLCK, 0, 10))).unwrap();
}

/// Lustre's protocol has a single kind of lock, so these locks conflict, as on NFS but unlike on a
/// local disk.
#[test]
fn posix_and_bsd_locks_conflict() {
    let env = TwoMounts::new();
    let (a, b) = (open(&env.a), open(&env.b));
    setlk(&a, F_WRLCK, 0, 1).unwrap();
    let exclusive = FlockOperation::NonBlockingLockExclusive;
    assert_eq!(flock(&b, exclusive), Err(rustix::io::Errno::AGAIN));
    setlk(&a, F_UNLCK, 0, 0).unwrap();
    flock(&b, exclusive).unwrap();
    assert_eq!(setlk(&a, F_RDLCK, 100, 1), Err(Errno::EAGAIN));
}

/// Starts a process that locks the first bytes of a file, reports it, and runs until killed.
fn start_lock_holder(file: &Path) -> Child {
    let script = "use Fcntl; open(F, '+<', $ARGV[0]) or die; \
                  my $lock = pack('s s x4 q q l x4', F_WRLCK, 0, 0, 10, 0); fcntl(F, F_SETLKW, $lock) or die; \
                  $| = 1; print qq(locked\\n); sleep 3600";
    Command::new("perl")
        .args(["-e", script])
        .arg(file)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits until the process reports its lock.
fn wait_for_lock(process: &mut Child) {
    let mut line = [0; 7];
    std::io::Read::read_exact(process.stdout.as_mut().unwrap(), &mut line).unwrap();
    assert_eq!(&line, b"locked\n");
}

fn kill_and_wait(mut process: Child) {
    process.kill().unwrap();
    process.wait().unwrap();
}

#[test]
fn killed_process_leaves_no_lock_or_waiter() {
    let env = TwoMounts::new();
    fs::write(env.a.join("f"), "").unwrap();
    let file = env.a.join("f");
    let mut first = start_lock_holder(&file);
    wait_for_lock(&mut first);
    let b = open(&env.b);
    assert_eq!(setlk(&b, F_RDLCK, 0, 1), Err(Errno::EAGAIN));
    // Kills a waiting process, then the lock holder.
    let waiting = start_lock_holder(&file);
    thread::sleep(Duration::from_millis(300));
    kill_and_wait(waiting);
    kill_and_wait(first);
    setlkw(&b, F_WRLCK, 0, 10).unwrap();
    setlk(&b, F_UNLCK, 0, 0).unwrap();
    let mut third = start_lock_holder(&file);
    wait_for_lock(&mut third);
    kill_and_wait(third);
}

#[test]
fn locks_need_matching_open_mode() {
    let env = TwoMounts::new();
    drop(open(&env.a));
    let reader = File::open(env.a.join("f")).unwrap();
    let writer = OpenOptions::new().write(true).open(env.a.join("f")).unwrap();
    assert_eq!(setlk(&reader, F_WRLCK, 0, 0), Err(Errno::EBADF));
    assert_eq!(setlk(&writer, F_RDLCK, 0, 0), Err(Errno::EBADF));
    assert_eq!(setlk(&writer, F_WRLCK, -1, 5), Err(Errno::EINVAL));
}
