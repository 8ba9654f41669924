//! Measures message rates and bandwidth: over TCP on loopback between two nodes of this process,
//! and over LNet's `lo` from a node to itself. Run it with `cargo run --release -p lnet --example
//! throughput`.

use bytes::Bytes;
use cpt::{BoxFuture, CptConfig, CptTable};
use lnet::{IncomingPut, Lnet, LnetConfig, LnetError, MatchEntry, Md, PutSink, SinkFull};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::Nid;

/// Measurement time of each operation with each number of tasks; also the time limit of a ping.
const MEASURE_TIME: Duration = Duration::from_secs(2);
const MIB: usize = 1 << 20;

/// Accepts and drops all messages.
struct Discard;

impl PutSink for Discard {
    fn put(&self, _: IncomingPut) -> Result<(), SinkFull> {
        Ok(())
    }
    fn wait_for_space(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cpts = CptTable::build(&CptConfig::default())?;
    let task_cpts = cpts.clone();
    cpts.get(cpt::CptId(0)).handle().tokio().block_on(async move {
        let cfg = LnetConfig {
            accept_port: 7988,
            ..LnetConfig::default()
        };
        let node_a = Lnet::new(task_cpts.clone(), cfg.clone());
        let node_b = Lnet::new(task_cpts, cfg);
        let (nid_a, nid_b) = ("127.0.0.1@tcp".parse::<Nid>()?, "127.0.0.2@tcp".parse::<Nid>()?);
        node_a.add_tcp(nid_a, true).await?;
        node_b.add_tcp(nid_b, true).await?;
        for node in [&node_a, &node_b] {
            // Dropping a guard ends the service: keep them until the process ends.
            std::mem::forget(node.serve_portal(12, Arc::new(Discard)));
        }
        let data = Bytes::from(vec![7; MIB]);
        for (name, to) in [("tcp", nid_b), ("lo", Nid::LO)] {
            for tasks in [1, 64] {
                let ping =
                    move |node_a: Arc<Lnet>| async move { node_a.ping(to, MEASURE_TIME).await.map(drop) };
                report(name, "ping", tasks, 0, measure(&node_a, tasks, ping).await?);
                let small = data.slice(..400);
                let put = move |node_a: Arc<Lnet>| {
                    let small = small.clone();
                    async move { node_a.put(to, 12, 1, 0, 0, small.into(), false).await.map(drop) }
                };
                report(name, "put 400 B", tasks, 0, measure(&node_a, tasks, put).await?);
            }
            for tasks in [1, 8] {
                let bulk = data.clone();
                let put = move |node_a: Arc<Lnet>| {
                    let bulk = bulk.clone();
                    async move { node_a.put(to, 12, 1, 0, 0, bulk.into(), true).await.map(drop) }
                };
                report(
                    name,
                    "put 1 MiB, ack",
                    tasks,
                    MIB,
                    measure(&node_a, tasks, put).await?,
                );
                let source = Md::Source(data.clone().into());
                let mut sources = Vec::new();
                for node in [&node_a, &node_b] {
                    let mut buffer = node.attach(
                        MatchEntry {
                            portal: 8,
                            match_bits: 9,
                            from: None,
                        },
                        source.clone(),
                    );
                    sources.push(tokio::spawn(
                        async move { while buffer.next().await.is_some() {} },
                    ));
                }
                let get = move |node_a: Arc<Lnet>| async move {
                    node_a.get(to, 8, 9, 0, MIB as u32).await.map(drop)
                };
                report(name, "get 1 MiB", tasks, MIB, measure(&node_a, tasks, get).await?);
                sources.iter().for_each(|s| s.abort());
            }
        }
        node_a.shutdown().await;
        node_b.shutdown().await;
        Ok(())
    })
}

/// Measures the rate, per second, at which `tasks` tasks together complete `operation`.
async fn measure<F>(
    node_a: &Arc<Lnet>,
    tasks: usize,
    operation: impl Fn(Arc<Lnet>) -> F + Clone + Send + 'static,
) -> Result<f64, LnetError>
where
    F: Future<Output = Result<(), LnetError>> + Send,
{
    operation(node_a.clone()).await?;
    let begin = Instant::now();
    let running: Vec<_> = (0..tasks)
        .map(|_| {
            let (node_a, operation) = (node_a.clone(), operation.clone());
            tokio::spawn(async move {
                let mut done = 0u64;
                while begin.elapsed() < MEASURE_TIME {
                    operation(node_a.clone()).await?;
                    done += 1;
                }
                Ok::<u64, LnetError>(done)
            })
        })
        .collect();
    let mut done = 0;
    for task in running {
        done += task.await.map_err(|_| LnetError::ShutDown)??;
    }
    Ok(done as f64 / begin.elapsed().as_secs_f64())
}

fn report(driver: &str, operation: &str, tasks: usize, bytes: usize, per_second: f64) {
    let mib = per_second * bytes as f64 / MIB as f64;
    let bandwidth = if bytes > 0 {
        format!("{mib:10.0} MiB/s")
    } else {
        String::new()
    };
    println!("{driver:4} {operation:15} {tasks:3} at once {per_second:10.0} /s {bandwidth}");
}
