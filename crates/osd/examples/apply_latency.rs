//! Measures `Index::apply` and `Index::get` while another task syncs again and again: neither may
//! wait for the disk.
//!
//! `cargo run --release -p osd --example apply_latency [DIRECTORY] [CREATES]`

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use osd::{Batch, LocalStores, OsdError, Stores};

/// Multiplier that spreads successive numbers over all keys (2^64 divided by the golden ratio).
const KEY_SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

#[tokio::main]
async fn main() -> Result<(), OsdError> {
    let mut args = std::env::args().skip(1);
    let dir = args
        .next()
        .map_or_else(std::env::temp_dir, PathBuf::from)
        .join(format!("apply_latency.{}", std::process::id()));
    let count: u64 = args.next().and_then(|n| n.parse().ok()).unwrap_or(100_000);
    std::fs::create_dir_all(&dir).expect("the directory can be created");
    let index = LocalStores::in_dir(dir.clone()).open_index().await?;
    let stop = Arc::new(AtomicBool::new(false));
    let syncing = tokio::spawn({
        let (index, stop) = (index.clone(), stop.clone());
        async move {
            let mut times = Vec::new();
            while !stop.load(Relaxed) {
                let start = Instant::now();
                if index.sync().await.is_err() {
                    break;
                }
                times.push(start.elapsed());
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            times
        }
    });
    let (mut applies, mut gets) = (Vec::new(), Vec::new());
    for n in 0..count {
        index.throttle().await;
        let mut batch = Batch::new();
        for (kind, size) in [(b'i', 160), (b'd', 24), (b'x', 56)] {
            batch.put(
                [&[kind][..], &n.wrapping_mul(KEY_SPREAD).to_be_bytes()].concat(),
                vec![7u8; size],
            );
        }
        let start = Instant::now();
        index.apply(batch)?;
        applies.push(start.elapsed());
        let key = [&b"i"[..], &(n / 2).wrapping_mul(KEY_SPREAD).to_be_bytes()].concat();
        let start = Instant::now();
        index.get(&key).await?;
        gets.push(start.elapsed());
    }
    stop.store(true, Relaxed);
    let syncs = syncing.await.expect("the sync task does not panic");
    for (name, mut times) in [("apply", applies), ("get", gets), ("sync", syncs)] {
        times.sort();
        let percentile = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
        println!(
            "{name:>5}: {} times, median {:?}, 99 % {:?}, 99.9 % {:?}, longest {:?}",
            times.len(),
            percentile(0.5),
            percentile(0.99),
            percentile(0.999),
            percentile(1.0)
        );
    }
    drop(index);
    std::fs::remove_dir_all(&dir).expect("the directory can be removed");
    Ok(())
}
