//! What one operation costs, of a client and its servers in one process and in memory: for `valgrind --tool=callgrind`, or by
//! the CPU's clock.
//!
//! `cost create|mknod|stat|unlink [COUNT [AT_ONCE [workers]]]`

#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "../tests/cluster/mod.rs"]
mod cluster;

use client::{Client, Cred, OpenFlags};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::{Errno, Fid};

/// CPU time of all threads so far.
fn cpu() -> Duration {
    let of = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("schedstat")).unwrap();
    let nanos = |stat: String| stat.split(' ').next().unwrap().parse::<u64>().unwrap();
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    Duration::from_nanos(threads.map(|thread| nanos(of(thread.unwrap()))).sum())
}

async fn create(client: &Client, dir: Fid, name: &str) -> Result<(), Errno> {
    let flags = OpenFlags {
        excl: true,
        ..OpenFlags::READ_WRITE
    };
    let (_, file) = client
        .create(&Cred::root(), dir, name.as_bytes(), 0o644, flags)
        .await?;
    client.release(&file).await
}

async fn once(client: &Client, what: &str, dir: Fid, name: &str) -> Result<(), Errno> {
    let root = Cred::root();
    match what {
        "create" => create(client, dir, name).await,
        "mknod" => client
            .mknod(&root, dir, name.as_bytes(), 0o100644, 0)
            .await
            .map(drop),
        "stat" => client.lookup(&root, dir, name.as_bytes()).await.map(drop),
        "unlink" => client.unlink(&root, dir, name.as_bytes()).await,
        _ => panic!("create, mknod, stat or unlink"),
    }
}

async fn run(what: String, count: usize, at_once: usize) {
    let cluster = cluster::Cluster::start(2).await;
    let client = cluster.mount().await;
    let mut dirs = Vec::new();
    for i in 0..at_once {
        let dir = client
            .mkdir(&Cred::root(), client.root(), format!("d{i}").as_bytes(), 0o755)
            .await
            .unwrap();
        dirs.push(dir.attr.fid);
    }
    let all = async |what: &str| {
        let tasks: Vec<_> = dirs
            .iter()
            .map(|&dir| {
                let (client, what): (Arc<Client>, _) = (client.clone(), what.to_owned());
                tokio::spawn(async move {
                    for i in 0..count / at_once {
                        once(&client, &what, dir, &format!("f{i}")).await.unwrap();
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    };
    if what == "stat" || what == "unlink" {
        all("create").await;
    }
    let (cpu_before, begun) = (cpu(), Instant::now());
    all(&what).await;
    let (took, used) = (begun.elapsed(), cpu() - cpu_before);
    println!(
        "{what}: {count} in {:.3} s, {:.0}/s, {:.1} us of CPU each",
        took.as_secs_f64(),
        count as f64 / took.as_secs_f64(),
        used.as_secs_f64() * 1e6 / count as f64
    );
    client.umount().await;
    cluster.stop().await;
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default| args.get(i).map_or(default, |a| a.parse().unwrap());
    let what = args.first().cloned().unwrap_or_default();
    let workers = number(3, 0);
    let runtime = if workers == 0 {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    } else {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(workers)
            .enable_all()
            .build()
            .unwrap()
    };
    runtime.block_on(async {
        tokio::spawn(run(what, number(1, 10000), number(2, 1)))
            .await
            .unwrap()
    });
}
