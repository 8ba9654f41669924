//! Crashes of a simulated disk: what survives, and that the same seed gives the same result.

#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used)]

mod faults;
mod index;
mod objects;
mod targets;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use cpt::NodeScope;
use osd::{Batch, Index, Objects, Stores};
use sim::store::{DiskConfig, SimDisk};
use tokio::task::JoinHandle;
use wire::Fid;

/// Runs a test in virtual time, as a part of a simulated node.
fn simulate<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(NodeScope::new(1).run(test))
}

/// A crash.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Crash {
    PowerCut,
    ProcessKill,
}

/// A running node with its stores.
struct Node {
    disk: SimDisk,
    scope: Arc<NodeScope>,
    index: Arc<dyn Index>,
    objects: Arc<dyn Objects>,
}

impl Node {
    /// A node with an empty disk.
    async fn new(seed: u64) -> Node {
        Node::start(SimDisk::new(DiskConfig::default(), seed)).await
    }

    async fn start(disk: SimDisk) -> Node {
        let scope = NodeScope::new(2);
        let stores = disk.stores();
        let (index, objects) = scope
            .run(async {
                let index = stores.open_index().await.unwrap();
                let objects = stores.open_objects(&index).await.unwrap();
                (index, objects)
            })
            .await;
        Node {
            disk,
            scope,
            index,
            objects,
        }
    }

    /// Runs an operation as a task of the node; returns when it has begun.
    async fn begin<T: Send + 'static>(
        &self,
        operation: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let mut task = None;
        let begin = async {
            task = Some(cpt::spawn(operation));
            tokio::task::yield_now().await;
        };
        self.scope.run(begin).await;
        task.unwrap()
    }

    /// Ends the node.
    fn crash(self, crash: Crash) -> SimDisk {
        self.scope.die();
        match crash {
            Crash::PowerCut => self.disk.power_cut(),
            Crash::ProcessKill => self.disk.process_kill(),
        }
        self.scope.abort();
        self.disk
    }

    /// Ends the node and starts it again.
    async fn crash_and_start(self, crash: Crash) -> Node {
        Node::start(self.crash(crash)).await
    }
}

fn fid(oid: u32) -> Fid {
    Fid::new(0x2_4000_0400, oid, 0)
}

/// A batch that sets one key.
fn put(key: &str, value: impl Into<bytes::Bytes>) -> Batch {
    let mut batch = Batch::new();
    batch.put(key.to_owned(), value);
    batch
}

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}
