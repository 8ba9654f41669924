//! Measures embedded stores with the workload of an MDT.
//!
//! A create is a batch of three puts: inode (key 17 bytes, value 160), directory entry (key 38,
//! value 24), layout (key 18, value 56). In mode `direct`, every create is a batch of the engine,
//! and a thread syncs every 50 ms, as `osd` does. In mode `grouped`, creates go to an ordered map
//! in memory, and a thread writes the whole map to the engine as one durable batch every 50 ms. Run
//! without arguments for a list of commands.

mod engines;

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use crossbeam_skiplist::SkipMap;
use engines::{Engine, open};
use parking_lot::{Mutex, RwLock};

/// Interval of syncs or commits.
const SYNC_INTERVAL: Duration = Duration::from_millis(50);

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let arg = |i: usize| args.get(i).map(String::as_str).unwrap_or_default();
    let dir = PathBuf::from(arg(2));
    let count: u64 = arg(5).parse().unwrap_or(100_000);
    let threads: u64 = arg(4).parse().unwrap_or(1);
    match arg(1) {
        "create" => create(arg(3), &dir, threads, count, arg(6)),
        "idle" => idle(arg(3), &dir),
        "writer" => writer(arg(3), &dir),
        "check" => check(arg(3), &dir, count),
        _ => {
            println!(
                "storebench create DIR ENGINE THREADS COUNT direct|grouped   creates/s, CPU per create, lookups, scan"
            );
            println!(
                "storebench idle DIR ENGINE                                  open time, disk and memory of an empty store"
            );
            println!(
                "storebench writer DIR ENGINE                                applies and syncs until killed; prints the number of durable creates"
            );
            println!(
                "storebench check DIR ENGINE x N                             checks that creates up to N are present and batches complete"
            );
        }
    }
}

/// The three entries of a thread's create number `n`.
fn entries(thread: u64, n: u64) -> [(Vec<u8>, Vec<u8>); 3] {
    let fid = |p: u8| {
        let mut k = vec![p];
        k.extend((0x200000400 + thread).to_be_bytes());
        k.extend(n.to_be_bytes());
        k
    };
    // Directory entries are ordered by the hash of the name, as for readdir, so inserts are in
    // random order.
    let hash = (n ^ (thread << 48)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut dirent = vec![b'd'];
    dirent.extend([0; 16]);
    dirent.extend(hash.to_be_bytes());
    dirent.extend(format!("file.{n:08}").into_bytes());
    let mut layout = fid(b'x');
    layout.push(1);
    [
        (fid(b'i'), vec![7; 160]),
        (dirent, vec![8; 24]),
        (layout, vec![9; 56]),
    ]
}

/// CPU time of this process, seconds.
fn cpu() -> f64 {
    // SAFETY: getrusage fills the given structure.
    let u = unsafe {
        let mut u: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut u);
        u
    };
    let s = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    s(u.ru_utime) + s(u.ru_stime)
}

/// Allocated space of the files below a directory, KiB.
fn disk_kib(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut sum = 0;
    for e in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let m = e.metadata().expect("metadata");
        sum += if m.is_dir() {
            disk_kib(&e.path())
        } else {
            m.blocks() / 2
        };
    }
    sum
}

/// Resident memory of this process, KiB.
fn rss_kib() -> u64 {
    let s = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = s.lines().find(|l| l.starts_with("VmRSS")).expect("VmRSS");
    line.split_whitespace()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .expect("number")
}

/// A store in mode `grouped`.
struct GroupedStore {
    engine: Arc<dyn Engine>,
    /// Takes new entries.
    active: RwLock<Arc<SkipMap<Bytes, Bytes>>>,
    /// The map that is being written to the engine.
    committing: Mutex<Option<Arc<SkipMap<Bytes, Bytes>>>>,
}

impl GroupedStore {
    fn apply(&self, puts: [(Vec<u8>, Vec<u8>); 3]) {
        let map = self.active.read();
        for (k, v) in puts {
            map.insert(k.into(), v.into());
        }
    }
    fn commit(&self) {
        let full = {
            let mut active = self.active.write();
            let full = std::mem::take(&mut *active);
            *self.committing.lock() = Some(full.clone());
            full
        };
        let entries: Vec<_> = full.iter().collect();
        self.engine.batch(
            &mut entries.iter().map(|e| (e.key().as_ref(), e.value().as_ref())),
            true,
        );
        *self.committing.lock() = None;
    }
}

fn create(engine: &str, dir: &Path, threads: u64, count: u64, mode: &str) {
    std::fs::remove_dir_all(dir).ok();
    let e: Arc<dyn Engine> = Arc::from(open(engine, dir));
    let g = Arc::new(GroupedStore {
        engine: e.clone(),
        active: Default::default(),
        committing: Default::default(),
    });
    let grouped = mode == "grouped";
    let stop = Arc::new(AtomicBool::new(false));
    let syncs = Arc::new(AtomicU64::new(0));
    let sync_us = Arc::new(AtomicU64::new(0));
    let (start, cpu0) = (Instant::now(), cpu());
    let syncer = {
        let (e, g, stop, syncs, sync_us) =
            (e.clone(), g.clone(), stop.clone(), syncs.clone(), sync_us.clone());
        std::thread::spawn(move || {
            loop {
                let last = stop.load(SeqCst);
                let t = Instant::now();
                if grouped {
                    g.commit()
                } else {
                    e.sync()
                }
                syncs.fetch_add(1, SeqCst);
                sync_us.fetch_add(t.elapsed().as_micros() as u64, SeqCst);
                if last {
                    break;
                }
                std::thread::sleep(SYNC_INTERVAL.saturating_sub(t.elapsed()));
            }
        })
    };
    let workers: Vec<_> = (0..threads)
        .map(|t| {
            let (e, g) = (e.clone(), g.clone());
            std::thread::spawn(move || {
                for n in 0..count / threads {
                    let k = entries(t, n);
                    if grouped {
                        g.apply(k);
                    } else {
                        e.batch(&mut k.iter().map(|(k, v)| (k.as_slice(), v.as_slice())), false);
                    }
                }
            })
        })
        .collect();
    workers.into_iter().for_each(|w| w.join().expect("worker"));
    let applied = start.elapsed().as_secs_f64();
    stop.store(true, SeqCst);
    syncer.join().expect("syncer");
    let (total, cpu1) = (start.elapsed().as_secs_f64(), cpu() - cpu0);
    let lookups = 100_000u64.min(count);
    let t = Instant::now();
    for i in 0..lookups {
        let k = entries(i % threads, (i.wrapping_mul(7919)) % (count / threads));
        assert!(e.get(&k[1].0).is_some() && e.get(&k[0].0).is_some(), "lookup");
    }
    let lookup_time = t.elapsed().as_secs_f64();
    let t = Instant::now();
    let mut scanned = 0;
    let mut directory = vec![b'd'];
    directory.extend([0; 16]);
    for slice in 0..64u8 {
        let mut from = directory.clone();
        from.push(slice * 4);
        let mut to = directory.clone();
        to.push(slice * 4 + 3);
        scanned += e.scan(&from, &to, 1000);
    }
    println!(
        "{engine} {mode} threads={threads} creates={count} applied/s={:.0} durable/s={:.0} cpu_us/create={:.2} syncs={} sync_ms={:.2} lookups/s={:.0} scan/s={:.0} disk_MiB={} rss_MiB={}",
        count as f64 / applied,
        count as f64 / total,
        cpu1 * 1e6 / count as f64,
        syncs.load(SeqCst),
        sync_us.load(SeqCst) as f64 / 1e3 / syncs.load(SeqCst) as f64,
        lookups as f64 / lookup_time,
        scanned as f64 / t.elapsed().as_secs_f64(),
        disk_kib(dir) / 1024,
        rss_kib() / 1024,
    );
}

fn idle(engine: &str, dir: &Path) {
    std::fs::remove_dir_all(dir).ok();
    let before = rss_kib();
    let t = Instant::now();
    let e = open(engine, dir);
    let creation = t.elapsed();
    e.batch(&mut [(&b"k"[..], &b"v"[..])].into_iter(), true);
    let (rss, disk) = (rss_kib() - before, disk_kib(dir));
    drop(e);
    let t = Instant::now();
    drop(open(engine, dir));
    println!(
        "{engine} idle make_ms={:.1} reopen_ms={:.1} rss_KiB={rss} disk_KiB={disk}",
        creation.as_secs_f64() * 1e3,
        t.elapsed().as_secs_f64() * 1e3
    );
}

fn writer(engine: &str, dir: &Path) {
    std::fs::remove_dir_all(dir).ok();
    let e = open(engine, dir);
    for group in 0u64.. {
        let all: Vec<_> = (0..200).flat_map(|i| entries(0, group * 200 + i)).collect();
        e.batch(&mut all.iter().map(|(k, v)| (k.as_slice(), v.as_slice())), true);
        println!("{}", (group + 1) * 200);
    }
}

fn check(engine: &str, dir: &Path, durable: u64) {
    let t = Instant::now();
    let e = open(engine, dir);
    let opened = t.elapsed();
    let mut n = 0;
    loop {
        let found = entries(0, n).iter().filter(|(k, _)| e.get(k).is_some()).count();
        assert!(found == 0 || found == 3, "batch {n} is torn: {found} of 3");
        if found == 0 {
            break;
        }
        n += 1;
    }
    assert!(n >= durable, "{durable} creates were durable, found {n}");
    assert!(n.is_multiple_of(200), "group is torn: {n}");
    println!(
        "{engine} after kill: durable={durable} found={n} reopen_ms={:.1}",
        opened.as_secs_f64() * 1e3
    );
}
