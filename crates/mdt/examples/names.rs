//! Measures the cost of creating and removing files with one object each in the MDT's store,
//! without requests and locks. Compares two cases: all threads in one shared directory, and one
//! directory per thread. Prints the CPU time per operation in both cases, and the ratio of the
//! rates (shared to separate). The values are medians over alternating rounds.
//!
//! `cargo run --release -p mdt --example names` with the optional arguments
//! `memory|DIRECTORY THREADS FILES ROUNDS REPLIES`;
//! FILES is the number of files per thread. With REPLIES 1, the store keeps the reply to each
//! change, as for requests of clients that can recover; each thread is a slot.

use std::{
    path::Path,
    sync::{Barrier, atomic::AtomicU32},
    time::{Duration, Instant},
};

use mdt::{
    cred::Cred,
    layout::{self, StripeObject},
    namespace::{NewInode, UnlinkArgs, create, make_root, unlink},
    store::{Origin, ReplySlot, RequestStore, Store},
};
use osd::{LocalStores, MemoryStores, Stores};
use testbase::Wait;
use tokio::runtime::Handle;
use wire::{Errno, Fid, Text, Time, Xid};

const FILE: u32 = 0o100_644;
const DIRECTORY: u32 = 0o040_755;

/// The cost of all operations of one kind in one round.
struct Cost {
    /// Elapsed time.
    wall: Duration,
    /// CPU time of all threads of the process.
    cpu: Duration,
}

/// The operations on a store.
struct Load<'a> {
    store: &'a Store,
    /// Number of the next inode.
    next: &'a AtomicU32,
    /// Number of files per thread.
    files: u32,
    /// Whether the store keeps replies.
    keeps_replies: bool,
}

impl Load<'_> {
    /// The store, for a request of the slot `tag`.
    fn store(&self, tag: u16) -> RequestStore<'_> {
        let slot = self.keeps_replies.then(|| ReplySlot {
            client: 1,
            tag,
            xid: Xid(self.next.load(std::sync::atomic::Ordering::Relaxed).into()),
            status: 0,
            data: 0,
        });
        RequestStore::new(self.store, Origin { replayed: None, slot })
    }

    fn create_node(&self, tag: u16, dir: Fid, name: &str, mode: u32) -> Result<Fid, Errno> {
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
        create(self.store(tag), &Cred::root(), dir, name.as_bytes(), &node).wait()?;
        Ok(fid)
    }

    fn remove(&self, tag: u16, parent: Fid, name: &str) -> Result<(), Errno> {
        let args = UnlinkArgs {
            parent,
            name: name.as_bytes(),
            is_rmdir: false,
            time: Time::secs(2_000_000),
        };
        unlink(self.store(tag), &Cred::root(), args).wait().map(drop)
    }

    /// Runs `operation` for every file of every thread; thread n works in `dirs[n]`.
    fn run(&self, dirs: &[Fid], operation: impl Fn(u16, Fid, &str) -> Result<(), Errno> + Sync) -> Cost {
        let barrier = Barrier::new(dirs.len() + 1);
        let (start, cpu_at_start) = std::thread::scope(|scope| {
            for (thread, dir) in dirs.iter().enumerate() {
                let (barrier, operation) = (&barrier, &operation);
                let runtime = Handle::current();
                scope.spawn(move || {
                    let _guard = runtime.enter();
                    barrier.wait();
                    for n in 0..self.files {
                        let name = format!("file.{thread}.{n}");
                        operation(thread as u16 + 1, *dir, &name).expect("the operation succeeds");
                    }
                });
            }
            let times = (Instant::now(), cpu_time());
            barrier.wait();
            times
        });
        Cost {
            wall: start.elapsed(),
            cpu: cpu_time().saturating_sub(cpu_at_start),
        }
    }
}

/// User and system time of the process, in steps of 10 ms.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("the process's own state");
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    // The fields utime and stime, in ticks of 10 ms.
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
    let number = |i: usize, default: u32| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let location = args.first().map_or("memory", String::as_str);
    let (threads, files, rounds) = (number(1, 2) as usize, number(2, 20_000), number(3, 7));
    let dir = Path::new(location).join(format!("names.{}", std::process::id()));
    let stores: Box<dyn Stores> = match location {
        "memory" => Box::new(MemoryStores(8 << 30)),
        _ => {
            std::fs::create_dir_all(&dir).expect("a directory to work in");
            Box::new(LocalStores::in_dir(dir.clone()))
        }
    };
    let store = Store::new(stores.open_index().await.expect("the store opens"));
    make_root(&store, (0, 0), Time::secs(1))
        .await
        .expect("a root directory");
    let next = AtomicU32::new(0);
    let load = Load {
        store: &store,
        next: &next,
        files,
        keeps_replies: number(4, 0) != 0,
    };
    let mkdir = |name: &str| {
        load.create_node(1, Fid::ROOT, name, DIRECTORY)
            .expect("a directory")
    };
    let shared = vec![mkdir("shared"); threads];
    let separate: Vec<Fid> = (0..threads).map(|n| mkdir(&format!("own{n}"))).collect();
    // Costs of creating and removing, alternately in the shared and in separate directories.
    let mut costs = Vec::new();
    for _ in 0..rounds {
        for dirs in [&shared, &separate] {
            let create_cost = load.run(dirs, |tag, dir, name| {
                load.create_node(tag, dir, name, FILE).map(drop)
            });
            store.index().sync().await.expect("a sync");
            let remove_cost = load.run(dirs, |tag, dir, name| load.remove(tag, dir, name));
            store.index().sync().await.expect("a sync");
            costs.push([create_cost, remove_cost]);
        }
    }
    println!(
        "{threads} threads, {location}: CPU us per operation (shared, separate directories); rate shared/separate"
    );
    for (i, name) in ["create", "unlink"].into_iter().enumerate() {
        let operations = f64::from(files) * threads as f64;
        // The median in shared (0) or separate (1) directories.
        let median_of = |case: usize, value: &dyn Fn(&Cost) -> f64| {
            let chosen = costs.iter().skip(case).step_by(2);
            median(chosen.filter_map(|c| c.get(i)).map(value).collect())
        };
        let cpu = |c: &Cost| c.cpu.as_secs_f64() * 1e6 / operations;
        let rate = |c: &Cost| operations / c.wall.as_secs_f64();
        println!(
            "{name:>7} {:7.2} {:7.2} {:7.2}",
            median_of(0, &cpu),
            median_of(1, &cpu),
            median_of(0, &rate) / median_of(1, &rate)
        );
    }
    drop(store);
    if location != "memory" {
        std::fs::remove_dir_all(&dir).expect("the directory is removed");
    }
}
