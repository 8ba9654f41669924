//! The CPU cost of one operation, with a client and its servers in one process and in memory: as
//! CPU time, or under `valgrind --tool=callgrind`.
//!
//! `cost OPERATION [COUNT [TASKS [WORKERS]]]`: COUNT operations in all (default 10000), by TASKS
//! concurrent tasks (default 1), each in its own directory, on WORKERS threads besides the main
//! thread (default 0). OPERATION is `create`, `mknod`, `stat`, `unlink`, or one of
//!
//! - `read`: look up, open, read and close a file of 4 KiB;
//! - `read-on-mdt`: the same with the data on the MDT;
//! - `read-on-mdt-apart`: the same with a request each for lock and data (`dom_lock=never`);
//! - `write`, `write-on-mdt`: create a file, write 4 KiB and close it.
//!
//! Another client creates the files to stat, read or unlink and unmounts, so every operation needs
//! requests. The measured part runs in [`measured`], so that callgrind can leave out the rest
//! (`--toggle-collect=cost::measured`). That needs WORKERS to be 0: everything then runs on one
//! thread.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use bytes::Bytes;
use client::{Client, Cred, OpenFlags};
use std::sync::Arc;
use std::time::{Duration, Instant};
use testkit::Cluster;
use tokio::runtime::{Builder, Runtime};
use wire::striping::{CompositeLayout, LovLayout, PlainLayout};
use wire::{Errno, Fid, LovCompMdEntryV1, LuExtent};

/// CPU time that the running threads of this process have used so far.
fn cpu_time() -> Duration {
    let schedstat =
        |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("schedstat")).unwrap();
    let nanos = |stat: String| stat.split(' ').next().unwrap().parse::<u64>().unwrap();
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    Duration::from_nanos(threads.map(|thread| nanos(schedstat(thread.unwrap()))).sum())
}

/// Length of the files to read and write, in bytes.
const FILE_LEN: usize = 4096;

/// `lfs setstripe -E 64K -L mdt`.
fn on_mdt() -> Bytes {
    let entry = LovCompMdEntryV1 {
        lcme_extent: LuExtent {
            e_start: 0,
            e_end: 64 << 10,
        },
        ..LovCompMdEntryV1::default()
    };
    let components = vec![(entry, PlainLayout::request_on_mdt(64 << 10))];
    LovLayout::Composite(CompositeLayout::new(components)).build()
}

/// Creates a file with `len` bytes; an empty `layout`: the default.
async fn create(client: &Client, dir: Fid, name: &str, layout: Bytes, len: usize) -> Result<(), Errno> {
    let flags = OpenFlags {
        excl: true,
        ..OpenFlags::READ_WRITE
    };
    let (_, file) = client
        .create_with(&Cred::root(), (dir, name.as_bytes()), 0o644, flags, layout)
        .await?;
    if len > 0 {
        client.write(&file, 0, vec![7; len].into()).await?;
    }
    client.release(&file).await
}

async fn read(client: &Client, dir: Fid, name: &str) -> Result<(), Errno> {
    let root = Cred::root();
    let fid = client.lookup(&root, dir, name.as_bytes()).await?.attr.fid;
    let file = client.open(&root, fid, OpenFlags::READ).await?;
    let read = client.read(&file, 0, 2 * FILE_LEN).await?;
    assert_eq!(read.iter().map(Bytes::len).sum::<usize>(), FILE_LEN);
    client.release(&file).await
}

async fn run_once(client: &Client, operation: &str, dir: Fid, name: &str) -> Result<(), Errno> {
    let root = Cred::root();
    match operation {
        "create" => create(client, dir, name, Bytes::new(), 0).await,
        "write" => create(client, dir, name, Bytes::new(), FILE_LEN).await,
        "write-on-mdt" => create(client, dir, name, on_mdt(), FILE_LEN).await,
        "read" | "read-on-mdt" | "read-on-mdt-apart" => read(client, dir, name).await,
        "mknod" => client
            .mknod(&root, dir, name.as_bytes(), 0o100644, 0)
            .await
            .map(drop),
        "stat" => client.lookup(&root, dir, name.as_bytes()).await.map(drop),
        "unlink" => client.unlink(&root, dir, name.as_bytes()).await,
        _ => panic!("unknown operation: {operation}"),
    }
}

/// A file system, its client, and one directory for each task.
struct Fixture {
    cluster: Cluster,
    client: Arc<Client>,
    dirs: Vec<Fid>,
}

impl Fixture {
    /// Creates the directories and, for stat, read and unlink, their files.
    async fn new(operation: &str, count: usize, task_count: usize) -> Fixture {
        let cluster = Cluster::start(2).await;
        let client = cluster.mount().await;
        let mut dirs = Vec::new();
        for i in 0..task_count {
            let dir = client
                .mkdir(&Cred::root(), client.root(), format!("d{i}").as_bytes(), 0o755)
                .await
                .unwrap();
            dirs.push(dir.attr.fid);
        }
        let mut fixture = Fixture {
            cluster,
            client,
            dirs,
        };
        let made_by = match operation {
            "stat" | "unlink" => Some("create"),
            "read" => Some("write"),
            "read-on-mdt" | "read-on-mdt-apart" => Some("write-on-mdt"),
            _ => None,
        };
        if operation == "read-on-mdt-apart" {
            let set = fixture.cluster.params.set("mdt.*.dom_lock", "never");
            set.unwrap();
        }
        if let Some(made_by) = made_by {
            fixture.run_all(made_by, count).await;
            let other = fixture.cluster.mount().await;
            std::mem::replace(&mut fixture.client, other).umount().await;
        }
        fixture
    }

    /// Runs an operation on `count` names, spread evenly over the directories, one task for each.
    async fn run_all(&self, operation: &str, count: usize) {
        let tasks: Vec<_> = self
            .dirs
            .iter()
            .map(|&dir| {
                let (client, operation, count) =
                    (self.client.clone(), operation.to_owned(), count / self.dirs.len());
                tokio::spawn(async move {
                    for i in 0..count {
                        run_once(&client, &operation, dir, &format!("f{i}"))
                            .await
                            .unwrap();
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    }
}

/// The measured part, a separate function in the compiled program.
#[inline(never)]
fn measured(runtime: &Runtime, fixture: &Fixture, operation: &str, count: usize) {
    runtime.block_on(fixture.run_all(operation, count));
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default| args.get(i).map_or(default, |a| a.parse().unwrap());
    let operation = args.first().cloned().unwrap_or_default();
    let (count, task_count, workers) = (number(1, 10000), number(2, 1), number(3, 0));
    let mut builder = match workers {
        0 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    if workers > 0 {
        builder.worker_threads(workers);
    }
    let runtime = builder.enable_all().build().unwrap();
    let fixture = runtime.block_on(Fixture::new(&operation, count, task_count));
    let (cpu_before, start) = (cpu_time(), Instant::now());
    measured(&runtime, &fixture, &operation, count);
    let (elapsed, cpu_used) = (start.elapsed(), cpu_time() - cpu_before);
    println!(
        "{operation}: {count} in {:.3} s, {:.0}/s, {:.1} us of CPU each",
        elapsed.as_secs_f64(),
        count as f64 / elapsed.as_secs_f64(),
        cpu_used.as_secs_f64() * 1e6 / count as f64
    );
    runtime.block_on(async {
        fixture.client.umount().await;
        fixture.cluster.stop().await;
    });
}
