//! The attacked file system, and a client that works with it during the attacks.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use wire::Nid;

use crate::fixture::{Site, nacre_ok};
use testbase::sockets::addresses;

/// The port of [`testbase::sockets`].
const PORT: &str = "7988";
/// Time limit for progress and for a text in the log, on a busy machine.
const WAIT_MAX: Duration = Duration::from_secs(180);
/// Permitted growth of the server's memory in MiB: cached buffers, and memory kept by the
/// allocator.
const GROWTH_MAX_MIB: u64 = 192;

/// UUID of the MDT.
pub(crate) const MDT: &str = "nacre-MDT0000_UUID";
/// UUID of the first OST.
pub(crate) const OST: &str = "nacre-OST0000_UUID";

/// Servers in one process with stores in memory, and a mount in another process.
pub(crate) struct AttackedFs {
    /// NID of the servers.
    pub(crate) nid: Nid,
    /// Mount point of the working client.
    pub(crate) mount: PathBuf,
    /// NID of the working client.
    pub(crate) worker: Nid,
    site: Site,
    work: BackgroundWork,
    /// Resident memory of the servers before the attacks, MiB; 0: not yet measured.
    memory_mib: u64,
}

impl AttackedFs {
    pub(crate) fn new() -> AttackedFs {
        let (nid, other) = addresses();
        let mut site = Site::new();
        let dir = site.directory("d");
        nacre_ok(&[
            "up",
            "--dir",
            &dir,
            "--no-mount",
            "--osts",
            "2",
            "--store",
            "memory",
            "--listen",
            &nid.to_string(),
            "--port",
            PORT,
        ]);
        let source = format!("{nid}:/nacre");
        let mount = site.mount(&source, "mnt", &["--listen", &other.to_string(), "--port", PORT]);
        let mount = PathBuf::from(mount);
        let work = BackgroundWork::start(&mount);
        let mut attacked = AttackedFs {
            nid,
            mount,
            worker: other,
            site,
            work,
            memory_mib: 0,
        };
        attacked.check_progress("before the attacks");
        attacked.memory_mib = attacked.rss_mib();
        attacked
    }

    /// Checks after an attack: the work continues with correct results, no thread has panicked, and
    /// memory use is bounded.
    pub(crate) fn check_progress(&self, after: &str) {
        self.work.check_progress(after);
        let log = self.log();
        assert!(!log.contains("panicked"), "{after}: {log}");
        if self.memory_mib > 0 {
            let grown = self.rss_mib().saturating_sub(self.memory_mib);
            assert!(
                grown <= GROWTH_MAX_MIB,
                "{after}: memory has grown by {grown} MiB"
            );
        }
    }

    /// Waits for a text in the servers' log.
    pub(crate) fn wait_for_log(&self, text: &str) {
        let start_time = Instant::now();
        while !self.log().contains(text) {
            assert!(
                start_time.elapsed() < WAIT_MAX,
                "not in the log: {text}\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Checks that a text is not in the servers' log.
    pub(crate) fn check_not_logged(&self, text: &str) {
        let log = self.log();
        assert!(!log.contains(text), "{text}\n{log}");
    }

    /// Checks that the log is short, then stops the client and the servers.
    pub(crate) fn end(self) {
        let AttackedFs { site, work, .. } = self;
        let log = log_of(&site);
        assert!(log.len() < 1 << 20, "{} bytes of log", log.len());
        work.stop();
        nacre_ok(&["umount", &site.path_str("mnt")]);
        site.down("d");
        let log = log_of(&site);
        assert!(!log.contains("panicked"), "{log}");
    }

    /// The directory of the servers.
    pub(crate) fn dir(&self) -> String {
        self.site.path_str("d")
    }

    fn log(&self) -> String {
        log_of(&self.site)
    }

    fn rss_mib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.site.pid_in("d"))).unwrap();
        let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
        let kib = line.split_whitespace().nth(1).unwrap();
        kib.parse::<u64>().unwrap() / 1024
    }
}

fn log_of(site: &Site) -> String {
    fs::read_to_string(site.path("d").join("nacre.log")).unwrap_or_default()
}

/// A thread that creates, writes, reads, renames, lists and removes files, round after round.
struct BackgroundWork {
    rounds: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl BackgroundWork {
    fn start(mount: &Path) -> BackgroundWork {
        let (rounds, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (dir, count, end) = (mount.join("work"), rounds.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            fs::create_dir(&dir).unwrap();
            for n in 0.. {
                if end.load(Ordering::SeqCst) {
                    return;
                }
                run_round(&dir, n);
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        BackgroundWork { rounds, stop, thread }
    }

    /// Waits until the work has completed a round that began after this call.
    fn check_progress(&self, after: &str) {
        let (start_time, target_round) = (Instant::now(), self.rounds.load(Ordering::SeqCst) + 2);
        while self.rounds.load(Ordering::SeqCst) < target_round {
            assert!(
                !self.thread.is_finished(),
                "{after}: the working client got a wrong result"
            );
            assert!(
                start_time.elapsed() < WAIT_MAX,
                "{after}: the working client does not continue"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn stop(self) {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().unwrap();
    }
}

/// One round: writes new data and verifies the data of the previous round.
fn run_round(dir: &Path, n: u64) {
    let data = |n: u64| -> Vec<u8> { (0..40_000).map(|i: u64| (i * 31 + n) as u8).collect() };
    let (new, kept) = (dir.join("new"), dir.join(format!("kept{n}")));
    fs::write(&new, data(n)).unwrap();
    fs::File::open(&new).unwrap().sync_all().unwrap();
    fs::rename(&new, &kept).unwrap();
    assert!(fs::read(&kept).unwrap() == data(n), "round {n}");
    if let Some(before) = n.checked_sub(1) {
        let old = dir.join(format!("kept{before}"));
        assert!(fs::read(&old).unwrap() == data(before), "round {n}");
        fs::remove_file(old).unwrap();
    }
    let names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(names, [kept.file_name().unwrap()], "round {n}");
}
