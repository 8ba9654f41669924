//! Telling the kernel to forget.
//!
//! A notification about a name or about pages can wait, in the kernel, for a request on the same directory or page that
//! this process has not answered yet. So it is written by threads that do nothing else: never by one that answers
//! requests, and never with a lock held; they have nothing else open ([`apart`]), so that they keep nothing from ending when
//! the process is killed while they wait. One about attributes alone waits for nothing and is written at once.
//!
//! A name is let expire, not dropped: the kernel asks again when it next needs it. Dropped, a directory that somebody works
//! in would be without a path (`getcwd` fails) although nobody removed it.

use crate::apart;
use crate::nodes::Nodes;
use client::KernelCache;
use cpt::BoxFuture;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use wire::Fid;

/// Threads that write notifications: so many may be waiting for the kernel at once.
const THREADS: usize = 4;
/// Notifications that may be waiting to be written; who has more waits.
const QUEUE: usize = 1024;
/// When the kernel is told again of an inode that it does not know, although it was given a reference: the answer that it
/// is to forget may not have been taken in yet. (Of an inode that it knows it drops answers to requests from before.)
const AGAIN: [Duration; 4] = [
    Duration::from_millis(5),
    Duration::from_millis(20),
    Duration::from_millis(60),
    Duration::from_millis(200),
];

/// When the kernel is told again of a name that was looked up just before.
const SETTLED: Duration = Duration::from_millis(60);

/// `FUSE_NOTIFY_*`.
const INVAL_INODE: i32 = 2;
const INVAL_ENTRY: i32 = 3;
/// Flag of a name's (`FUSE_EXPIRE_ONLY`; kernels before 6.2 do not know it, and drop the name).
const EXPIRE_ONLY: u32 = 1;
/// Bytes of `fuse_out_header`.
const HEADER: usize = 16;

#[derive(Clone)]
enum What {
    Entry { parent: u64, name: Vec<u8> },
    Inode { ino: u64, offset: i64, len: i64 },
}

struct Job {
    what: What,
    /// Whether the kernel knew what it is about.
    done: oneshot::Sender<bool>,
    /// Its place among those that wait.
    _place: OwnedSemaphorePermit,
}

/// A job, and what the kernel said.
type Told = (Job, Result<(), rustix::io::Errno>);

/// The kernel's caches of one mount.
pub(crate) struct Invalidator {
    nodes: Arc<Nodes>,
    writer: Writer,
    runtime: tokio::runtime::Handle,
}

impl Invalidator {
    /// Starts the threads; they end when this is dropped.
    pub(crate) fn start(
        device: OwnedFd,
        nodes: Arc<Nodes>,
        runtime: tokio::runtime::Handle,
    ) -> io::Result<Invalidator> {
        let (jobs, rx) = mpsc::channel();
        let (tell, told) = mpsc::channel::<Told>();
        // What threads have open is what the one has that starts them.
        thread::scope(|scope| {
            let begin = || write_all(apart::with_a_clone_alone(device.as_fd())?, rx, tell);
            let first = thread::Builder::new().spawn_scoped(scope, begin)?;
            let panicked = |_| Err(io::Error::other("a thread failed at its start"));
            first.join().unwrap_or_else(panicked)
        })?;
        thread::Builder::new()
            .name("fuse-told".into())
            .spawn(move || told.into_iter().for_each(answer))?;
        Ok(Invalidator {
            nodes,
            writer: Writer {
                device: Arc::new(device),
                jobs,
                places: Arc::new(Semaphore::new(QUEUE)),
            },
            runtime,
        })
    }
}

/// Starts the threads that write, from one that has only the device open.
fn write_all(device: OwnedFd, jobs: mpsc::Receiver<Job>, tell: mpsc::Sender<Told>) -> io::Result<()> {
    let (device, jobs) = (Arc::new(device), Arc::new(parking_lot::Mutex::new(jobs)));
    for i in 0..THREADS {
        let (device, jobs, tell) = (device.clone(), jobs.clone(), tell.clone());
        let writes = move || {
            loop {
                let job = jobs.lock().recv();
                let Ok(job) = job else { return };
                let said = write(&device, &job.what);
                if tell.send((job, said)).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new()
            .name(format!("fuse-notify-{i}"))
            .spawn(writes)?;
    }
    Ok(())
}

/// Wakes who waits for a notification: what wakes a runtime is open to this thread, not to those that write.
fn answer((job, said): Told) {
    let _ = job.done.send(knew(said));
}

/// Where notifications are written.
#[derive(Clone)]
struct Writer {
    device: Arc<OwnedFd>,
    jobs: mpsc::Sender<Job>,
    places: Arc<Semaphore>,
}

impl Writer {
    /// Returns when the kernel has taken it; whether it knew what it is about.
    async fn write(&self, what: What) -> bool {
        if matches!(what, What::Inode { offset, .. } if offset < 0) {
            return knew(write(&self.device, &what));
        }
        let Ok(_place) = self.places.clone().acquire_owned().await else {
            return false;
        };
        let (done, rx) = oneshot::channel();
        self.jobs.send(Job { what, done, _place }).is_ok() && rx.await.unwrap_or(false)
    }
}

fn write(device: &OwnedFd, what: &What) -> Result<(), rustix::io::Errno> {
    rustix::io::write(device.as_fd(), &what.message()).map(drop)
}

fn knew(said: Result<(), rustix::io::Errno>) -> bool {
    match said {
        Ok(()) => true,
        Err(rustix::io::Errno::NOENT) => false,
        Err(e) => {
            tracing::debug!("the kernel did not take a notification: {e}");
            true
        }
    }
}

impl What {
    /// `fuse_out_header` (len, error = the notification's number, unique = 0), then `fuse_notify_inval_inode_out` (ino, off,
    /// len) or `fuse_notify_inval_entry_out` (parent, namelen, flags) and the name with a NUL.
    fn message(&self) -> Vec<u8> {
        let (number, body) = match self {
            What::Inode { ino, offset, len } => {
                let words = [ino.to_ne_bytes(), offset.to_ne_bytes(), len.to_ne_bytes()];
                (INVAL_INODE, words.concat())
            }
            What::Entry { parent, name } => {
                let mut body = parent.to_ne_bytes().to_vec();
                body.extend((name.len() as u32).to_ne_bytes());
                body.extend(EXPIRE_ONLY.to_ne_bytes());
                body.extend(name);
                body.push(0);
                (INVAL_ENTRY, body)
            }
        };
        let mut message = Vec::with_capacity(HEADER + body.len());
        message.extend(((HEADER + body.len()) as u32).to_ne_bytes());
        message.extend(number.to_ne_bytes());
        message.extend(0u64.to_ne_bytes());
        message.extend(body);
        message
    }
}

impl KernelCache for Invalidator {
    fn inval_entry<'a>(&'a self, parent: Fid, name: &'a [u8], child: Fid) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if let Some(parent) = self.nodes.known(parent) {
                let what = What::Entry {
                    parent,
                    name: name.to_vec(),
                };
                self.writer.write(what.clone()).await;
                // Who looks a name up again that he has holds no lock on the directory: what he was told last may be
                // taken in after this.
                if self.nodes.is_settling(child) {
                    let writer = self.writer.clone();
                    self.runtime.spawn(async move {
                        tokio::time::sleep(SETTLED).await;
                        writer.write(what).await;
                    });
                }
            }
        })
    }

    fn inval_inode(&self, fid: Fid, offset: i64, len: i64) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let Some(ino) = self.nodes.known(fid) else { return };
            if self.writer.write(What::Inode { ino, offset, len }).await {
                return;
            }
            let (nodes, writer) = (self.nodes.clone(), self.writer.clone());
            self.runtime.spawn(async move {
                for wait in AGAIN {
                    tokio::time::sleep(wait).await;
                    let known = nodes.known(fid) == Some(ino);
                    if !known || writer.write(What::Inode { ino, offset, len }).await {
                        return;
                    }
                }
            });
        })
    }
}
