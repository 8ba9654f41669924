//! Measures the CPU time of reads and writes of objects on the local file system:
//! `data_cost DIR [ROUNDS]`. DIR must not exist; it is removed at the end.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measuring tool")]

use std::{path::PathBuf, sync::Arc, time::Instant};

use bytes::Bytes;
use osd::{Extent, ExtentData, LocalConfig, LocalIndex, LocalObjects, Objects, SetAttr};
use rustix::time::{ClockId, clock_gettime};
use wire::Fid;

const MIB: u64 = 1 << 20;
/// Size of the large object.
const LARGE: u64 = 512 * MIB;
/// Number of small objects.
const SMALL: u32 = 4000;

fn fid(oid: u32) -> Fid {
    Fid::new(0x2_4000_0400, oid, 0)
}

/// CPU time of the process, µs.
fn cpu() -> f64 {
    let t = clock_gettime(ClockId::ProcessCPUTime);
    t.tv_sec as f64 * 1e6 + t.tv_nsec as f64 / 1e3
}

/// Prints the time and the CPU time of each of `count` operations.
async fn measure(name: &str, count: u64, run: impl Future<Output = ()>) {
    let (start, before) = (Instant::now(), cpu());
    run.await;
    let each = |total: f64| total / count as f64;
    println!(
        "{name:28} {:9.2} µs each, CPU {:9.2} µs",
        each(start.elapsed().as_secs_f64() * 1e6),
        each(cpu() - before)
    );
}

async fn write(objects: &LocalObjects, oid: u32, offset: u64, len: usize) {
    let data = vec![Bytes::from(vec![oid as u8; len])];
    let extents = vec![ExtentData { offset, data }];
    let written = objects.write_extents(fid(oid), extents, SetAttr::default()).await;
    written.unwrap().pop().unwrap().unwrap();
}

async fn read(objects: &LocalObjects, oid: u32, offset: u64, len: u32) {
    let extents = vec![Extent { offset, len }];
    let read = objects.read_extents(fid(oid), extents).await.unwrap();
    assert_eq!(read[0].iter().map(Bytes::len).sum::<usize>(), len as usize);
}

async fn round(objects: &LocalObjects, first: u32) {
    measure("write 1 MiB, new", LARGE / MIB, async {
        for n in 0..LARGE / MIB {
            write(objects, first, n * MIB, MIB as usize).await;
            if n % 64 == 63 {
                objects.sync(None).await.unwrap();
            }
        }
    })
    .await;
    measure("read 1 MiB, cached", LARGE / MIB, async {
        for n in 0..LARGE / MIB {
            read(objects, first, n * MIB, MIB as u32).await;
        }
    })
    .await;
    measure("write 4 KiB, overwrite", 16_384, async {
        for n in 0..16_384u64 {
            // A fixed order in which no block follows its neighbour.
            write(objects, first, n * 48_611 % (LARGE / 4096) * 4096, 4096).await;
            if n % 4096 == 4095 {
                objects.sync(None).await.unwrap();
            }
        }
    })
    .await;
    measure("read 4 KiB, cached", 65_536, async {
        for n in 0..65_536u64 {
            read(objects, first, n * 48_611 % (LARGE / 4096) * 4096, 4096).await;
        }
    })
    .await;
    measure("append 100 bytes", 16_384, async {
        for n in 0..16_384u64 {
            write(objects, first + 1, n * 100, 100).await;
        }
    })
    .await;
    measure("small file, write and sync", SMALL.into(), async {
        for n in 0..SMALL {
            write(objects, first + 2 + n, 0, 3901).await;
            if n % 1000 == 999 {
                objects.sync(None).await.unwrap();
            }
        }
    })
    .await;
    measure("small file, read", SMALL.into(), async {
        for n in 0..SMALL {
            read(objects, first + 2 + n, 0, 3901).await;
        }
    })
    .await;
    measure("small file, destroy", SMALL.into(), async {
        for n in 0..SMALL {
            objects.destroy(fid(first + 2 + n)).await.unwrap();
        }
    })
    .await;
    objects.destroy(fid(first)).await.unwrap();
    objects.destroy(fid(first + 1)).await.unwrap();
}

fn main() {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().expect("a directory"));
    let rounds: u32 = args.next().map_or(1, |n| n.parse().expect("a number"));
    std::fs::create_dir(&dir).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let index = Arc::new(LocalIndex::open(&dir.join("index"), LocalConfig::default()).unwrap());
    let objects = LocalObjects::open(&dir.join("objects"), index).unwrap();
    for n in 0..rounds {
        runtime.block_on(round(&objects, 1 + n * 10_000));
    }
    drop((runtime, objects));
    std::fs::remove_dir_all(&dir).unwrap();
}
