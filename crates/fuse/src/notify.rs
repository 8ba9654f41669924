//! Invalidations of the kernel's caches (`FUSE_NOTIFY_INVAL_*`).
//!
//! Writing an invalidation of a name or of pages can block in the kernel behind a request for the
//! same directory or page that this process has not answered yet. Only dedicated threads write such
//! invalidations, and they hold no lock of this process. Where the kernel allows it, their file
//! table holds only the device ([`unshare_fds`]), so that a blocked thread keeps nothing else open
//! when the process is killed. An invalidation of attributes alone never blocks and is written at
//! once.
//!
//! An invalidation makes a name expire: the kernel looks the name up again on next use. It does not
//! drop the name: if the name leads to a program's working directory, `getcwd` would then fail
//! although the directory still exists.

use crate::nodes::Nodes;
use crate::unshare_fds;
use client::KernelCache;
use cpt::BoxFuture;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use wire::Fid;

/// Number of threads that write invalidations: at most this many invalidations block in the kernel
/// at once.
const THREADS: usize = 4;
/// Maximum number of queued invalidations; further senders wait.
const QUEUE_MAX: usize = 1024;
/// Delays of retries if the kernel does not know an inode although this process has given the
/// kernel a reference: the kernel may still process the reply with the attributes to invalidate.
/// (If it knows the inode, the kernel drops outdated replies itself.)
const RETRY_DELAYS: [Duration; 4] = [
    Duration::from_millis(5),
    Duration::from_millis(20),
    Duration::from_millis(60),
    Duration::from_millis(200),
];

/// Delay before a repeated invalidation of a name that was just looked up.
const REPEAT_DELAY: Duration = Duration::from_millis(60);

/// `FUSE_NOTIFY_*` codes.
const INVAL_INODE: i32 = 2;
const INVAL_ENTRY: i32 = 3;
/// `FUSE_EXPIRE_ONLY`: expire the name. Kernels before 6.2 ignore it and drop the name.
const EXPIRE_ONLY: u32 = 1;
/// Size of `fuse_out_header`, bytes.
const HEADER_BYTES: usize = 16;

#[derive(Clone)]
enum Invalidation {
    Entry { parent: u64, name: Vec<u8> },
    Inode { ino: u64, offset: i64, len: i64 },
}

struct Job {
    invalidation: Invalidation,
    /// Tells the waiting sender whether the kernel knows the inode or name.
    known_tx: oneshot::Sender<bool>,
    /// The job's slot in the queue.
    _slot: OwnedSemaphorePermit,
}

/// A job, and the result of writing it.
type WriteResult = (Job, Result<(), rustix::io::Errno>);

/// Invalidates the kernel's caches of one mount.
pub(crate) struct Invalidator {
    nodes: Arc<Nodes>,
    writer: Writer,
    runtime: cpt::Handle,
}

impl Invalidator {
    /// Starts the threads. They end when the [`Invalidator`] is dropped.
    pub(crate) fn start(device: OwnedFd, nodes: Arc<Nodes>, runtime: cpt::Handle) -> io::Result<Invalidator> {
        let (jobs, rx) = mpsc::channel();
        let (written_tx, written_rx) = mpsc::channel::<WriteResult>();
        // Threads inherit the file table of the thread that starts them.
        thread::scope(|scope| {
            let start_writers = || {
                spawn_writers(
                    unshare_fds::unshare_fds_keep_device(device.as_fd())?,
                    rx,
                    written_tx,
                )
            };
            let starter = thread::Builder::new().spawn_scoped(scope, start_writers)?;
            let panicked = |_| Err(io::Error::other("a thread panicked at its start"));
            starter.join().unwrap_or_else(panicked)
        })?;
        thread::Builder::new()
            .name("fuse-notified".into())
            .spawn(move || written_rx.into_iter().for_each(wake_sender))?;
        Ok(Invalidator {
            nodes,
            writer: Writer {
                device: Arc::new(device),
                jobs,
                slots: Arc::new(Semaphore::new(QUEUE_MAX)),
            },
            runtime,
        })
    }
}

/// Starts the writing threads. They share the file table of the calling thread. Where the kernel
/// allows it, this table holds only the device.
fn spawn_writers(
    device: OwnedFd,
    jobs: mpsc::Receiver<Job>,
    written_tx: mpsc::Sender<WriteResult>,
) -> io::Result<()> {
    let (device, jobs) = (Arc::new(device), Arc::new(parking_lot::Mutex::new(jobs)));
    for i in 0..THREADS {
        let (device, jobs, written_tx) = (device.clone(), jobs.clone(), written_tx.clone());
        let run = move || {
            loop {
                let job = jobs.lock().recv();
                let Ok(job) = job else { return };
                let result = write(&device, &job.invalidation);
                if written_tx.send((job, result)).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new()
            .name(format!("fuse-notify-{i}"))
            .spawn(run)?;
    }
    Ok(())
}

/// Wakes the sender of an invalidation. The writing threads cannot do that: the runtime's event
/// file descriptor is not in their file table.
fn wake_sender((job, result): WriteResult) {
    let _ = job.known_tx.send(is_known(result));
}

/// The device and the queue of the writing threads.
#[derive(Clone)]
struct Writer {
    device: Arc<OwnedFd>,
    jobs: mpsc::Sender<Job>,
    slots: Arc<Semaphore>,
}

impl Writer {
    /// Writes an invalidation and waits until the kernel has processed it. Returns whether the
    /// kernel knows the inode or name; false also if the writing threads have ended.
    async fn write(&self, invalidation: Invalidation) -> bool {
        if matches!(invalidation, Invalidation::Inode { offset, .. } if offset < 0) {
            return is_known(write(&self.device, &invalidation));
        }
        let Ok(_slot) = self.slots.clone().acquire_owned().await else {
            return false;
        };
        let (known_tx, known_rx) = oneshot::channel();
        self.jobs
            .send(Job {
                invalidation,
                known_tx,
                _slot,
            })
            .is_ok()
            && known_rx.await.unwrap_or(false)
    }
}

/// Writes an invalidation to the device. Blocks as the kernel requires.
fn write(device: &OwnedFd, invalidation: &Invalidation) -> Result<(), rustix::io::Errno> {
    rustix::io::write(device.as_fd(), &invalidation.message()).map(drop)
}

/// Whether the kernel knows the inode or name: true for every result except `ENOENT`.
fn is_known(result: Result<(), rustix::io::Errno>) -> bool {
    match result {
        Ok(()) => true,
        Err(rustix::io::Errno::NOENT) => false,
        Err(e) => {
            tracing::debug!("the kernel refused an invalidation: {e}");
            true
        }
    }
}

impl Invalidation {
    /// `fuse_out_header` (len, error = the notification's number, unique = 0), then
    /// `fuse_notify_inval_inode_out` (ino, off, len) or `fuse_notify_inval_entry_out` (parent,
    /// namelen, flags) and the name with a NUL.
    fn message(&self) -> Vec<u8> {
        let (number, body) = match self {
            Invalidation::Inode { ino, offset, len } => {
                let words = [ino.to_ne_bytes(), offset.to_ne_bytes(), len.to_ne_bytes()];
                (INVAL_INODE, words.concat())
            }
            Invalidation::Entry { parent, name } => {
                let mut body = parent.to_ne_bytes().to_vec();
                body.extend((name.len() as u32).to_ne_bytes());
                body.extend(EXPIRE_ONLY.to_ne_bytes());
                body.extend(name);
                body.push(0);
                (INVAL_ENTRY, body)
            }
        };
        let mut message = Vec::with_capacity(HEADER_BYTES + body.len());
        message.extend(((HEADER_BYTES + body.len()) as u32).to_ne_bytes());
        message.extend(number.to_ne_bytes());
        message.extend(0u64.to_ne_bytes());
        message.extend(body);
        message
    }
}

impl KernelCache for Invalidator {
    fn inval_entry<'a>(&'a self, parent: Fid, name: &'a [u8], child: Fid) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if let Some(parent) = self.nodes.ino_of(parent) {
                let invalidation = Invalidation::Entry {
                    parent,
                    name: name.to_vec(),
                };
                self.writer.write(invalidation.clone()).await;
                // A program that looks up a cached name again takes no lock on the directory. The
                // kernel may process the reply to that lookup after this invalidation.
                if self.nodes.may_be_in_reply(child) {
                    let writer = self.writer.clone();
                    self.runtime.spawn(async move {
                        tokio::time::sleep(REPEAT_DELAY).await;
                        writer.write(invalidation).await;
                    });
                }
            }
        })
    }

    fn inval_inode(&self, fid: Fid, offset: i64, len: i64) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let Some(ino) = self.nodes.ino_of(fid) else { return };
            if self.writer.write(Invalidation::Inode { ino, offset, len }).await {
                return;
            }
            let (nodes, writer) = (self.nodes.clone(), self.writer.clone());
            self.runtime.spawn(async move {
                for wait in RETRY_DELAYS {
                    tokio::time::sleep(wait).await;
                    let known = nodes.ino_of(fid) == Some(ino);
                    if !known || writer.write(Invalidation::Inode { ino, offset, len }).await {
                        return;
                    }
                }
            });
        })
    }
}
