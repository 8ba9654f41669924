//! Telling the kernel to forget.
//!
//! A notification can wait, in the kernel, for a request on the same name or inode that this process has not answered yet.
//! So it is written by threads that do nothing else: never by one that answers requests, and never with a lock held.
//!
//! A name is let expire, not dropped: the kernel asks again when it next needs it. Dropped, a directory that somebody works
//! in would be without a path (`getcwd` fails) although nobody removed it.

use crate::nodes::Nodes;
use client::KernelCache;
use cpt::BoxFuture;
use fuser::{INodeNo, Notifier};
use std::os::fd::{AsFd, OwnedFd};
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

/// The notification's number, and its flag (`FUSE_EXPIRE_ONLY`; kernels before 6.2 do not know it, and drop the name).
const NOTIFY_INVAL_ENTRY: i32 = 3;
const EXPIRE_ONLY: u32 = 1;
/// Bytes of the message's two fixed parts.
const HEADER: usize = 16;
const ENTRY: usize = 16;

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
        device: OwnedFd,
        nodes: Arc<Nodes>,
        runtime: tokio::runtime::Handle,
    ) -> std::io::Result<Invalidator> {
        let (jobs, rx) = mpsc::channel::<Job>(QUEUE);
        let (rx, device) = (Arc::new(parking_lot::Mutex::new(rx)), Arc::new(device));
        for i in 0..THREADS {
            let (rx, notifier, device) = (rx.clone(), notifier.clone(), device.clone());
            std::thread::Builder::new()
                .name(format!("fuse-notify-{i}"))
                .spawn(move || {
                    loop {
                        let job = rx.lock().blocking_recv();
                        let Some(job) = job else { return };
                        write(&notifier, &device, &job.what);
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

fn write(notifier: &Notifier, device: &OwnedFd, what: &What) {
    let result = match what {
        What::Entry { parent, name } => expire(device, *parent, name),
        What::Inode { ino, offset, len } => notifier.inval_inode(INodeNo(*ino), *offset, *len),
    };
    if let Err(e) = result {
        tracing::debug!("the kernel did not take a notification: {e}");
    }
}

/// `FUSE_NOTIFY_INVAL_ENTRY`: `fuse_out_header` (len, error = the notification's number, unique = 0), then
/// `fuse_notify_inval_entry_out` (parent, namelen, flags), then the name with a NUL.
fn expire(device: &OwnedFd, parent: u64, name: &[u8]) -> std::io::Result<()> {
    let len = (HEADER + ENTRY + name.len() + 1) as u32;
    let mut message = Vec::with_capacity(len as usize);
    message.extend_from_slice(&len.to_ne_bytes());
    message.extend_from_slice(&NOTIFY_INVAL_ENTRY.to_ne_bytes());
    message.extend_from_slice(&0u64.to_ne_bytes());
    message.extend_from_slice(&parent.to_ne_bytes());
    message.extend_from_slice(&(name.len() as u32).to_ne_bytes());
    message.extend_from_slice(&EXPIRE_ONLY.to_ne_bytes());
    message.extend_from_slice(name);
    message.push(0);
    rustix::io::write(device.as_fd(), &message)?;
    Ok(())
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
