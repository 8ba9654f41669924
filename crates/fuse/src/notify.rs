//! Telling the kernel to forget.
//!
//! A notification can wait, in the kernel, for a request on the same name or inode that this process has not answered yet.
//! So it is written by threads that do nothing else: never by one that answers requests, and never with a lock held.

use crate::nodes::Nodes;
use client::KernelCache;
use cpt::BoxFuture;
use fuser::{INodeNo, Notifier};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use wire::Fid;

/// Threads that write notifications: so many may be waiting for the kernel at once.
const THREADS: usize = 4;
/// Notifications that may be waiting to be written; who has more waits.
const QUEUE: usize = 1024;
/// When a notification is repeated that may have come before the kernel took in the answer that it takes back.
const AGAIN: Duration = Duration::from_millis(60);

enum What {
    Entry { parent: u64, name: Vec<u8> },
    Inode { ino: u64, offset: i64, len: i64 },
}

struct Job {
    what: What,
    done: Option<oneshot::Sender<()>>,
}

/// The kernel's caches of one mount.
pub(crate) struct Invalidator {
    nodes: Arc<Nodes>,
    jobs: mpsc::Sender<Job>,
    runtime: tokio::runtime::Handle,
}

impl Invalidator {
    /// Starts the threads; they end when this is dropped.
    pub(crate) fn start(
        notifier: &Notifier,
        nodes: Arc<Nodes>,
        runtime: tokio::runtime::Handle,
    ) -> std::io::Result<Invalidator> {
        let (jobs, rx) = mpsc::channel::<Job>(QUEUE);
        let rx = Arc::new(parking_lot::Mutex::new(rx));
        for i in 0..THREADS {
            let (rx, notifier) = (rx.clone(), notifier.clone());
            std::thread::Builder::new()
                .name(format!("fuse-notify-{i}"))
                .spawn(move || {
                    loop {
                        let job = rx.lock().blocking_recv();
                        let Some(job) = job else { return };
                        write(&notifier, &job.what);
                        if let Some(done) = job.done {
                            let _ = done.send(());
                        }
                    }
                })?;
        }
        Ok(Invalidator { nodes, jobs, runtime })
    }

    /// Writes a notification and waits until the kernel has taken it. `settling`: an inode that the kernel may only be
    /// about to take in, so that it is told again.
    async fn post(&self, settling: Option<u64>, make: impl Fn() -> What) {
        let (tx, rx) = oneshot::channel();
        if self
            .jobs
            .send(Job {
                what: make(),
                done: Some(tx),
            })
            .await
            .is_ok()
        {
            let _ = rx.await;
        }
        if settling.is_some_and(|ino| self.nodes.is_settling(ino)) {
            let (jobs, what) = (self.jobs.clone(), make());
            self.runtime.spawn(async move {
                tokio::time::sleep(AGAIN).await;
                let _ = jobs.send(Job { what, done: None }).await;
            });
        }
    }
}

fn write(notifier: &Notifier, what: &What) {
    let result = match what {
        What::Entry { parent, name } => notifier.inval_entry(INodeNo(*parent), OsStr::from_bytes(name)),
        What::Inode { ino, offset, len } => notifier.inval_inode(INodeNo(*ino), *offset, *len),
    };
    if let Err(e) = result {
        tracing::debug!("the kernel did not take a notification: {e}");
    }
}

impl KernelCache for Invalidator {
    fn inval_entry<'a>(&'a self, parent: Fid, name: &'a [u8]) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if let Some(parent) = self.nodes.known(parent) {
                self.post(None, || What::Entry {
                    parent,
                    name: name.to_vec(),
                })
                .await;
            }
        })
    }

    fn inval_inode(&self, fid: Fid, offset: i64, len: i64) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Some(ino) = self.nodes.known(fid) {
                self.post(Some(ino), || What::Inode { ino, offset, len }).await;
            }
        })
    }
}
