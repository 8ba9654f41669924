//! Clients that hang, lose their network or die: other clients continue within the documented time,
//! and a client that returns detects its losses and reports them to applications.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::crash_matrix::{ENQUEUE_MIN, SLACK, holds_within, set_short_lock_timeout, two_clients};
use crate::file_system::{pid_of_mount, record_of_mount, text};
use crate::fixture::{Site, kill, nacre, nacre_ok, sh};
use crate::namespaces::{NetworkLink, start_on_separate_hosts};

/// Time limit for operations of B that wait for locks of an unresponsive A.
const OTHERS_WAIT_MAX: Duration = Duration::from_secs(3 * ENQUEUE_MIN.as_secs() + SLACK.as_secs());

/// A stopped process (SIGSTOP); continues on drop.
#[derive(Debug)]
pub(crate) struct StoppedProcess(Pid);

impl StoppedProcess {
    pub(crate) fn new(pid: u64) -> StoppedProcess {
        let process = StoppedProcess(Pid::from_raw(pid as i32).unwrap());
        kill_process(process.0, Signal::STOP).unwrap();
        // Each thread stops separately.
        let stopped = || {
            let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
            let states = threads.map(|t| fs::read_to_string(t.path().join("stat")).unwrap_or_default());
            states
                .into_iter()
                .all(|stat| stat.is_empty() || stat.contains(") T "))
        };
        assert!(holds_within(SLACK, stopped), "the process does not stop");
        process
    }
}

impl Drop for StoppedProcess {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// Whether fsync reports lost data. Panics at another error, and if fsync succeeded although data
/// was lost.
fn reports_loss(synced: &std::io::Result<()>, lost: bool) -> bool {
    let reported = match synced {
        Ok(()) => false,
        Err(e) => e.raw_os_error() == Some(Errno::IO.raw_os_error()),
    };
    assert!(
        reported || (synced.is_ok() && !lost),
        "lost: {lost}, but {synced:?}"
    );
    reported
}

/// B reads, writes and creates files that A has locked. Returns the first data read.
fn check_b_continues(b: &Path, name: &str) -> Vec<u8> {
    let start_time = Instant::now();
    let read = fs::read(b.join(name)).unwrap();
    let file = open(&b.join(name));
    file.write_all_at(b"of B", 0).unwrap();
    file.sync_all().unwrap();
    fs::write(b.join("new of B"), name).unwrap();
    fs::remove_file(b.join("new of B")).unwrap();
    assert!(
        start_time.elapsed() < OTHERS_WAIT_MAX,
        "B waited for {:?}",
        start_time.elapsed()
    );
    read
}

/// Checks that A's mount works and shows B's changes.
fn check_a_recovers(a: &Path, b: &Path, name: &str) {
    // A request in progress when A notices the eviction may fail once.
    let a_sees_change = holds_within(SLACK, || {
        fs::read(a.join(name)).is_ok_and(|read| read.starts_with(b"of B"))
    });
    assert!(a_sees_change, "A sees {:?}", fs::read(a.join(name)));
    let new = a.join("new of A");
    assert!(
        holds_within(SLACK, || fs::write(&new, name).is_ok()),
        "A does not recover"
    );
    File::open(&new).unwrap().sync_all().unwrap();
    assert_eq!(fs::read(b.join("new of A")).unwrap(), name.as_bytes());
    fs::remove_file(&new).unwrap();
}

fn check_eviction_logged(a: &Path) {
    let log = record_of_mount(a)["log"].as_str().unwrap().to_owned();
    let log = fs::read_to_string(log).unwrap();
    assert!(log.contains("evicted by the server"), "{log}");
    assert!(log.contains("could not be written and is lost"), "{log}");
}

#[test]
fn hanging_client_is_evicted_in_time_and_reports_its_losses() {
    let (fs, a, b) = two_clients();
    let pid = pid_of_mount(&a);
    // Data is lost only if the test stops A before A writes back, half a second after the write.
    let lost = (0..20).any(|round| {
        let name = format!("f{round}");
        fs::write(a.join(&name), "old content").unwrap();
        let (file, reader) = (open(&a.join(&name)), File::open(a.join(&name)).unwrap());
        let copy = file.try_clone().unwrap();
        file.sync_all().unwrap();
        file.write_all_at(b"new", 0).unwrap();
        let stopped_a = StoppedProcess::new(pid);
        let lost = check_b_continues(&b, &name) == b"old content";
        drop(stopped_a);
        // Close also reports the error.
        drop(copy);
        let synced = reports_loss(&file.sync_all(), lost);
        for open in [&file, &reader, &file] {
            assert_eq!(
                reports_loss(&open.sync_all(), lost),
                synced,
                "the error must be permanent"
            );
        }
        check_a_recovers(&a, &b, &name);
        lost
    });
    assert!(lost, "in all 20 rounds, A wrote back before the stop");
    check_eviction_logged(&a);
    nacre_ok(&["umount", text(&b)]);
    fs.stop();
    fs.check_consistency();
}

/// A program that changes a page of a mapping, and syncs it after the eviction, gets an error and
/// does not overwrite other clients' data in that page.
#[test]
fn mapped_page_from_before_an_eviction_is_not_written_back() {
    let (fs, a, b) = two_clients();
    fs::write(a.join("f"), vec![b'-'; 8192]).unwrap();
    let program = fs.site.path_str("map.py");
    fs::write(
        &program,
        "import mmap, os, signal, sys\n\
         f = os.open(sys.argv[1], os.O_RDWR)\n\
         m = mmap.mmap(f, 8192)\n\
         m[100:103] = b'old'\n\
         os.kill(int(sys.argv[2]), signal.SIGSTOP)\n\
         print('changed', flush=True)\n\
         sys.stdin.readline()\n\
         try:\n\
         \x20   m.flush(); os.fsync(f); print('synced', flush=True)\n\
         except OSError as e:\n\
         \x20   print(e.errno, flush=True)\n\
         sys.stdin.readline()\n\
         print(m[0:4], m[100:103])\n",
    )
    .unwrap();
    let pid = pid_of_mount(&a);
    let mut mapping = Command::new("python3")
        .args([&program, text(&a.join("f")), &pid.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(mapping.stdout.take().unwrap()).lines();
    let mut next_line = || lines.next().unwrap().unwrap();
    assert_eq!(next_line(), "changed");
    let stopped_a = StoppedProcess::new(pid);
    check_b_continues(&b, "f");
    drop(stopped_a);
    let mut stdin = mapping.stdin.take().unwrap();
    stdin.write_all(b"\n").unwrap();
    assert_eq!(next_line(), Errno::IO.raw_os_error().to_string());
    check_a_recovers(&a, &b, "f");
    stdin.write_all(b"\n").unwrap();
    let status = mapping.wait().unwrap();
    assert_eq!(
        status.signal(),
        Some(Signal::BUS.as_raw()),
        "the mapping must not show old bytes"
    );
    let read = fs::read(b.join("f")).unwrap();
    assert_eq!((&read[..4], &read[100..103]), (&b"of B"[..], &b"---"[..]));
    nacre_ok(&["umount", text(&b)]);
    fs.stop();
}

#[test]
fn disconnected_client_is_evicted_in_time_and_returns() {
    let mut site = Site::new();
    let (network, mounts) = start_on_separate_hosts(&mut site);
    set_short_lock_timeout(&site);
    let [a, b] = mounts.each_ref().map(Path::new);
    let pid = pid_of_mount(a);
    let mut link = NetworkLink::of(&network, "a");
    let lost = (0..20).any(|round| {
        let name = format!("f{round}");
        fs::write(a.join(&name), "old content").unwrap();
        let file = open(&a.join(&name));
        file.sync_all().unwrap();
        file.write_all_at(b"new", 0).unwrap();
        // Stop A while the network is cut, so that it does not write back first.
        let stopped_a = StoppedProcess::new(pid);
        link.set("down");
        drop(stopped_a);
        let (lost, synced) = thread::scope(|s| {
            // A program on A waits in fsync meanwhile.
            let synced = s.spawn(|| file.sync_all());
            let lost = check_b_continues(b, &name) == b"old content";
            link.set("up");
            (lost, synced.join().unwrap())
        });
        assert_eq!(
            reports_loss(&file.sync_all(), lost),
            reports_loss(&synced, lost),
            "the error must be permanent"
        );
        check_a_recovers(a, b, &name);
        lost
    });
    assert!(lost, "A wrote back before the cut, every time");
    check_eviction_logged(a);
    mounts.iter().for_each(|at| drop(nacre_ok(&["umount", at])));
    ["ost", "mdt", "mgs"].iter().for_each(|host| site.down(host));
    let dirs = ["ost", "mdt", "mgs"].map(|dir| site.path_str(dir));
    let result = nacre(&["fsck", &dirs[0], &dirs[1], &dirs[2]]);
    assert!(result.ok, "{}{}", result.out, result.err);
}

/// Other clients must not wait for the lock timeout of a reachable client, which is 100 s here.
#[test]
fn other_clients_continue_soon_after_the_death_of_a_host() {
    // 10 s after the loss of the peer (`unreachable_timeout`), plus slack for a busy machine.
    const WAIT_MAX: Duration = Duration::from_secs(80);
    let mut site = Site::new();
    let (network, mounts) = start_on_separate_hosts(&mut site);
    let [a, b] = mounts.each_ref().map(Path::new);
    fs::write(a.join("f"), "of A").unwrap();
    let file = open(&a.join("f"));
    file.sync_all().unwrap();
    assert_eq!(fs::read_dir(a).unwrap().count(), 1);
    let pid = pid_of_mount(a);
    let mut link = NetworkLink::behind_the_switch(&network, "a");
    link.set("down");
    kill(pid as u32);
    drop(file);
    // The OST's lock on the data, and the MDT's lock on the directory.
    let steps: [(&str, &dyn Fn()); 2] = [
        ("write", &|| {
            let file = open(&b.join("f"));
            file.write_all_at(b"of B", 0).unwrap();
            file.sync_all().unwrap();
        }),
        ("create", &|| fs::write(b.join("new"), "").unwrap()),
    ];
    for (operation, step) in steps {
        let start_time = Instant::now();
        step();
        let waited = start_time.elapsed();
        assert!(waited < WAIT_MAX, "{operation} waited for {waited:?}");
    }
    for server in ["mdt", "ost"] {
        let log = fs::read_to_string(site.path(server).join("nacre.log")).unwrap();
        assert!(log.contains("it blocks other clients"), "{server}: {log}");
    }
    nacre_ok(&["umount", text(b)]);
}

/// TCP's own retransmission would resume only 24 s after the network returns.
#[test]
fn client_continues_soon_after_its_network_returns() {
    const WAIT_MAX: Duration = Duration::from_secs(20);
    let mut site = Site::new();
    let (network, mounts) = start_on_separate_hosts(&mut site);
    let a = Path::new(&mounts[0]);
    fs::write(a.join("f"), "content").unwrap();
    let file = open(&a.join("f"));
    file.sync_all().unwrap();
    let mut link = NetworkLink::behind_the_switch(&network, "a");
    link.set("down");
    let waited = thread::scope(|s| {
        let new = a.join("new");
        let write = s.spawn(move || {
            fs::write(&new, "of A").unwrap();
            File::open(&new).unwrap().sync_all().unwrap();
            Instant::now()
        });
        // TCP has retransmitted 25.4 s after the first transmission, and retransmits again after 51
        // s.
        thread::sleep(Duration::from_secs(27));
        assert!(!write.is_finished());
        let start_time = Instant::now();
        link.set("up");
        write.join().unwrap() - start_time
    });
    assert!(waited < WAIT_MAX, "it took {waited:?}");
    assert_eq!(fs::read(a.join("new")).unwrap(), b"of A");
    drop(file);
    mounts.iter().for_each(|at| drop(nacre_ok(&["umount", at])));
}

#[test]
fn locks_and_space_of_a_killed_client_are_released() {
    const BYTES: usize = 20 << 20;
    let (fs, a, b) = two_clients();
    // A has locks on data and names, an `flock` lock, and an open file without a name.
    fs::write(a.join("data"), "of A").unwrap();
    fs::write(a.join("locked"), "").unwrap();
    let locked = open(&a.join("locked"));
    flock(&locked, FlockOperation::NonBlockingLockExclusive).unwrap();
    fs::write(a.join("gone"), vec![7; BYTES]).unwrap();
    let gone = open(&a.join("gone"));
    gone.sync_all().unwrap();
    fs::remove_file(a.join("gone")).unwrap();
    let is_stored = || {
        let large = format!("find {} -type f -size +10M | wc -l", fs.site.path_str("ost"));
        sh(&large).trim() != "0"
    };
    assert!(is_stored());
    assert_eq!(fs::read_dir(&a).unwrap().count(), 2);
    kill(pid_of_mount(&a) as u32);

    let at_b = open(&b.join("locked"));
    let result = flock(&at_b, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(
        result,
        Err(Errno::WOULDBLOCK),
        "the lock is free although the servers cannot know that A is gone"
    );
    assert_eq!(check_b_continues(&b, "data"), b"of A");
    let start_time = Instant::now();
    flock(&at_b, FlockOperation::LockExclusive).unwrap();
    assert!(holds_within(SLACK, || !is_stored()), "the removed file's space");
    assert!(
        start_time.elapsed() < OTHERS_WAIT_MAX,
        "{:?}",
        start_time.elapsed()
    );
    nacre_ok(&["umount", text(&a)]);
    drop((locked, gone));
    drop(at_b);
    nacre_ok(&["umount", text(&b)]);
    fs.stop_servers();
    fs.check_consistency();
}

/// Whether a notification thread of the process waits in the kernel and ignores signals (state D).
/// It does so while it invalidates a name in a directory in which another program works.
fn is_blocked_in_kernel(pid: u64) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    threads.flatten().any(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.contains("(fuse-notify-") && stat.contains(") D ")
    })
}

/// After the kill, pending requests of programs fail, and the mount ends. Otherwise the programs in
/// the directory and the client would wait for each other forever.
#[test]
fn client_killed_in_a_kernel_notification_exits() {
    let (fs, a, b) = two_clients();
    let dir = a.join("d");
    fs::create_dir(&dir).unwrap();
    (0..9).for_each(|i| fs::write(dir.join(format!("f{i}")), "").unwrap());
    assert!((0..9).all(|i| dir.join(format!("f{i}")).exists()));
    let pid = pid_of_mount(&a);
    let mdt = StoppedProcess::new(fs.site.pid_in("mdt").into());
    let start = |command: &mut Command| command.stdin(Stdio::null()).spawn().unwrap();
    let mut mkdir = start(Command::new("mkdir").arg(dir.join("new")));
    // Wait until mkdir has sent its request.
    let waits =
        || fs::read_to_string(format!("/proc/{}/wchan", mkdir.id())).unwrap() == "request_wait_answer";
    assert!(holds_within(SLACK, waits));
    let clear = ["set_param", "ldlm.namespaces.*.lru_size=clear"];
    let nacre = env!("CARGO_BIN_EXE_nacre");
    let mut lctl = start(
        Command::new(nacre)
            .args(["lctl", "--mount", text(&a)])
            .args(clear),
    );
    assert!(holds_within(SLACK, || is_blocked_in_kernel(pid)));
    kill(pid as u32);
    let exited = holds_within(SLACK, || mkdir.try_wait().unwrap().is_some());
    assert!(exited && !mkdir.wait().unwrap().success());
    lctl.wait().unwrap();
    assert_eq!(
        fs::read_dir(&dir).err().and_then(|e| e.raw_os_error()),
        Some(Errno::NOTCONN.raw_os_error())
    );
    drop(mdt);
    assert!(nacre_ok(&["umount", text(&a)]).contains("died"));
    fs::write(b.join("d/of B"), "").unwrap();
    nacre_ok(&["umount", text(&b)]);
    fs.stop_servers();
    fs.check_consistency();
}
