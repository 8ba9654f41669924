//! Measures the cost of creating and removing files with one object each on the MDT's own stack:
//! all threads in one shared directory against one directory per thread. Prints the CPU time per
//! operation for both cases, and the rate in the shared directory relative to the rate in separate
//! ones; medians over alternating rounds.
//!
//! `cargo run --release -p mdt --example names [memory|DIRECTORY] [THREADS] [FILES] [ROUNDS]`

use std::{
    path::Path,
    sync::{Barrier, atomic::AtomicU32},
    time::{Duration, Instant},
};

use mdt::{
    cred::Cred,
    layout::{self, StripeObject},
    namespace::{NewInode, Unlink, create, make_root, unlink},
    store::Store,
};
use osd::{StoreKind, open_index};
use wire::{Errno, Fid, Text, Time};

const FILE: u32 = 0o100_644;
const DIRECTORY: u32 = 0o040_755;

/// The cost of one operation in one round.
struct Cost {
    wall: Duration,
    cpu: Duration,
}

struct Load<'a> {
    store: &'a Store,
    next: &'a AtomicU32,
    files: u32,
}

impl Load<'_> {
    fn make(&self, dir: Fid, name: &str, mode: u32) -> Result<Fid, Errno> {
        let n = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let fid = Fid::new(0x2_0000_0401 + u64::from(n >> 16), (n & 0xffff) + 1, 0);
        let object = StripeObject {
            ost: wire::OstIndex(n % 2),
            fid: Fid::new(0x2_4000_0400, n + 1, 0),
        };
        let node = NewInode {
            fid,
            mode,
            time: Time::secs(1_000_000 + i64::from(n)),
            lov: layout::build(fid, 0, Text::default(), &[object]),
            ..NewInode::default()
        };
        create(self.store, &Cred::root(), dir, name.as_bytes(), &node)?;
        Ok(fid)
    }

    fn remove(&self, parent: Fid, name: &str) -> Result<(), Errno> {
        let args = Unlink {
            parent,
            name: name.as_bytes(),
            dir: false,
            time: Time::secs(2_000_000),
        };
        unlink(self.store, &Cred::root(), args).map(drop)
    }

    /// Runs `each` for every file of every thread; thread n works in `dirs[n]`.
    fn run(&self, dirs: &[Fid], each: impl Fn(Fid, &str) -> Result<(), Errno> + Sync) -> Cost {
        let start = Barrier::new(dirs.len() + 1);
        let (begun, cpu) = std::thread::scope(|scope| {
            for (thread, dir) in dirs.iter().enumerate() {
                let (start, each) = (&start, &each);
                scope.spawn(move || {
                    start.wait();
                    for n in 0..self.files {
                        each(*dir, &format!("file.{thread}.{n}")).expect("the operation succeeds");
                    }
                });
            }
            let before = (Instant::now(), cpu_time());
            start.wait();
            before
        });
        Cost {
            wall: begun.elapsed(),
            cpu: cpu_time().saturating_sub(cpu),
        }
    }
}

/// CPU time of the process; the kernel counts hundredths of a second.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("the process's own state");
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = fields.split_whitespace().skip(11).take(2);
    Duration::from_millis(ticks.filter_map(|t| t.parse::<u64>().ok()).sum::<u64>() * 10)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u32| args.get(at).and_then(|a| a.parse().ok()).unwrap_or(default);
    let place = args.first().map_or("memory", String::as_str);
    let (threads, files, rounds) = (number(1, 2) as usize, number(2, 20_000), number(3, 7));
    let dir = Path::new(place).join(format!("names.{}", std::process::id()));
    let kind = match place {
        "memory" => StoreKind::Memory(8 << 30),
        _ => {
            std::fs::create_dir_all(&dir).expect("a directory to work in");
            StoreKind::Local(dir.clone())
        }
    };
    let store = Store::new(open_index(&kind).await.expect("the store opens"));
    make_root(&store, (0, 0), Time::secs(1)).expect("a root directory");
    let next = AtomicU32::new(0);
    let load = Load {
        store: &store,
        next: &next,
        files,
    };
    let mkdir = |name: &str| load.make(Fid::ROOT, name, DIRECTORY).expect("a directory");
    let shared = vec![mkdir("shared"); threads];
    let own: Vec<Fid> = (0..threads).map(|n| mkdir(&format!("own{n}"))).collect();
    let mut costs = Vec::new();
    for _ in 0..rounds {
        for dirs in [&shared, &own] {
            let created = load.run(dirs, |dir, name| load.make(dir, name, FILE).map(drop));
            store.index().sync().await.expect("a sync");
            let removed = load.run(dirs, |dir, name| load.remove(dir, name));
            store.index().sync().await.expect("a sync");
            costs.push([created, removed]);
        }
    }
    println!(
        "{threads} threads, {place}: CPU us per operation (shared, separate directories); rate shared/separate"
    );
    for (at, name) in ["create", "unlink"].into_iter().enumerate() {
        let operations = f64::from(files) * threads as f64;
        let of = |which: usize, value: &dyn Fn(&Cost) -> f64| {
            let chosen = costs.iter().skip(which).step_by(2);
            median(chosen.filter_map(|c| c.get(at)).map(value).collect())
        };
        let cpu = |c: &Cost| c.cpu.as_secs_f64() * 1e6 / operations;
        let rate = |c: &Cost| operations / c.wall.as_secs_f64();
        println!(
            "{name:>7} {:7.2} {:7.2} {:7.2}",
            of(0, &cpu),
            of(1, &cpu),
            of(0, &rate) / of(1, &rate)
        );
    }
    drop(store);
    if place != "memory" {
        std::fs::remove_dir_all(&dir).expect("the directory goes");
    }
}
