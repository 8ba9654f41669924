//! What all requests of a mount share, and how a request is run.

use crate::convert::errno;
use crate::flock::Lockers;
use crate::handles::Handles;
use crate::hover::Hover;
use crate::nodes::Nodes;
use crate::notify::Invalidator;
use crate::reply::Refuse;
use crate::wait::Asker;
use bytes::Bytes;
use client::{Client, Cred, DirHandle, Found, OpenFile, OpenFlags};
use fuser::{Errno, FileHandle, FopenFlags, INodeNo, LockOwner, ReplyAttr, ReplyEntry, WriteFlags};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use wire::{Fid, Time};

/// How long the kernel may believe what a lock covers: until it is told otherwise.
const COVERED: Duration = Duration::from_secs(24 * 3600);

/// How long the kernel may believe an answer.
pub(crate) fn ttl(covered: bool) -> Duration {
    if covered { COVERED } else { Duration::ZERO }
}

/// Works that may go on although nobody waits for them any more.
const LEFT_BEHIND: usize = 4096;

/// What all requests of a mount share.
pub(crate) struct State {
    pub(crate) client: Arc<Client>,
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) files: Handles<OpenFile>,
    pub(crate) dirs: Handles<DirHandle>,
    pub(crate) lockers: Lockers,
    pub(crate) runtime: Handle,
    /// Whether reads and writes go past the kernel's pages, which then are for mappings only.
    past_pages: AtomicBool,
    /// Places for works that nobody waits for any more.
    left_behind: Arc<Semaphore>,
    /// Set once the device is open.
    pub(crate) hover: OnceLock<Hover>,
    /// Set once the device is open.
    pub(crate) kernel: OnceLock<Arc<Invalidator>>,
}

impl State {
    /// `born`: when the root directory was made, if that is known.
    pub(crate) fn new(client: Arc<Client>, born: Time, runtime: Handle, past_pages: bool) -> State {
        State {
            nodes: Arc::new(Nodes::new(client.root(), born)),
            client,
            files: Handles::new(),
            dirs: Handles::new(),
            lockers: Lockers::default(),
            runtime,
            past_pages: AtomicBool::new(past_pages),
            left_behind: Arc::new(Semaphore::new(LEFT_BEHIND)),
            hover: OnceLock::new(),
            kernel: OnceLock::new(),
        }
    }

    pub(crate) fn past_pages(&self) -> bool {
        self.past_pages.load(Ordering::Relaxed)
    }

    /// The kernel cannot map what it has no pages of: reads and writes use them too.
    pub(crate) fn keep_pages(&self) {
        self.past_pages.store(false, Ordering::Relaxed);
    }

    /// How the kernel is to treat an open file. Pages that it has of it stay good: they were read under a lock, and it is
    /// told when that lock goes.
    ///
    /// Reads and writes go past them. A read that ends at the file's end ends, in the kernel's pages, at the size that the
    /// kernel believes; and it drops the answer that would tell it another when it is told, at that moment, to forget the
    /// last one (`attr_version` in fs/fuse/inode.c), so that who reads while somebody else appends would miss what was
    /// there before. A write through the pages would lock them while it waits for its extent lock, and giving back a lock
    /// waits for the kernel to let go of such pages. Appends go where the servers say that the end is, so one after another.
    pub(crate) fn fopen_flags(&self, flags: &OpenFlags) -> FopenFlags {
        let kept = FopenFlags::FOPEN_KEEP_CACHE;
        if flags.append {
            kept | FopenFlags::FOPEN_DIRECT_IO
        } else if self.past_pages() || flags.direct {
            kept | FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
        } else {
            kept
        }
    }

    /// Answers a request that changes nothing: its work is dropped when the asker gives up the wait.
    pub(crate) fn run<T, R: Refuse>(
        self: &Arc<Self>,
        asker: Asker,
        reply: R,
        work: impl Future<Output = Result<T, wire::Errno>> + Send + 'static,
        answer: impl FnOnce(&State, T, R) + Send + 'static,
    ) where
        T: Send,
    {
        let state = self.clone();
        self.begin(async move {
            let result = tokio::select! {
                biased;
                result = work => result,
                () = asker.gave_up() => Err(wire::Errno::EINTR),
            };
            match result {
                Ok(value) => answer(&state, value, reply),
                Err(e) => reply.refuse(errno(e)),
            }
        });
    }

    /// Answers a request that may change something: its work is done to its end, also when the asker gives up the wait. Too
    /// many such works are not left behind: then the asker goes on waiting.
    pub(crate) fn run_to_end<T, R: Refuse>(
        self: &Arc<Self>,
        asker: Asker,
        reply: R,
        work: impl Future<Output = Result<T, wire::Errno>> + Send + 'static,
        answer: impl FnOnce(&State, T, R) + Send + 'static,
    ) where
        T: Send,
    {
        let state = self.clone();
        self.begin(async move {
            let mut work = pin!(work);
            let result = tokio::select! {
                biased;
                result = &mut work => result,
                place = state.leave_behind(asker) => {
                    reply.refuse(Errno::EINTR);
                    drop(work.await);
                    return drop(place);
                }
            };
            match result {
                Ok(value) => answer(&state, value, reply),
                Err(e) => reply.refuse(errno(e)),
            }
        });
    }

    /// Returns when the asker gives up the wait for a work that may be left behind. A close always may: there are no more of
    /// them than open files.
    async fn leave_behind(&self, asker: Asker) -> Option<OwnedSemaphorePermit> {
        asker.gave_up().await;
        match asker {
            Asker::Closer(_) => None,
            _ => self.left_behind.clone().acquire_owned().await.ok(),
        }
    }

    /// Runs a request: as far as it goes without waiting right here, on the thread that read it, the rest on the runtime.
    /// What the caches can answer, or a server of this process, is thus answered without a change of thread.
    fn begin(&self, work: impl Future<Output = ()> + Send + 'static) {
        let begin = || cpt::begin_here(&self.runtime, work);
        match self.hover.get() {
            Some(hover) => hover.around(begin),
            None => begin(),
        }
    }

    /// The file of an inode number.
    pub(crate) fn fid(&self, ino: INodeNo) -> Result<Fid, Errno> {
        self.nodes.fid(ino.0).ok_or(Errno::ESTALE)
    }

    /// The open file of a handle.
    pub(crate) fn file(&self, fh: FileHandle) -> Result<Arc<OpenFile>, Errno> {
        self.files.get(fh.0).ok_or(Errno::EBADF)
    }

    /// The open directory of a handle.
    pub(crate) fn dir(&self, fh: FileHandle) -> Result<Arc<DirHandle>, Errno> {
        self.dirs.get(fh.0).ok_or(Errno::EBADF)
    }

    /// Reads for `reader`. Pages are read in nobody's name: where reads go past the pages, for a mapping.
    pub(crate) async fn read(
        &self,
        file: &OpenFile,
        offset: u64,
        len: usize,
        reader: Option<LockOwner>,
    ) -> Result<Vec<Bytes>, wire::Errno> {
        if reader.is_none() && self.past_pages() {
            self.client.read_mapped(file, offset, len).await
        } else {
            self.client.read(file, offset, len).await
        }
    }

    /// Writes what a program wrote, or what it changed in a mapping.
    pub(crate) async fn write(
        &self,
        cred: &Cred,
        file: &Arc<OpenFile>,
        offset: u64,
        data: Bytes,
        flags: WriteFlags,
    ) -> Result<usize, wire::Errno> {
        if flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
            return self.client.write_mapped(file, offset, data).await;
        }
        if flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
            self.client.kill_priv(cred, file).await?;
        }
        self.client.write(file, offset, data).await
    }

    /// Answers with the file of a name in this directory: the kernel gets a reference to it.
    pub(crate) fn entry(&self, dir: INodeNo, found: Found, reply: ReplyEntry) {
        let node = self.node(dir, &found);
        let generation = self.nodes.generation(found.attr.fid);
        reply.entry_with_ttls(&node.attr_ttl, &node.name_ttl, &node.attr, generation);
    }

    /// Answers with attributes.
    pub(crate) fn attr(&self, (ino, found): (INodeNo, Found), reply: ReplyAttr) {
        if self.nodes.is_alias(ino.0) {
            // To programs it is the same directory.
            let number = self.nodes.number(found.attr.fid);
            return reply.attr(&Duration::ZERO, &self.nodes.attr(number, &found));
        }
        reply.attr(&ttl(found.attr_cached), &self.nodes.attr(ino.0, &found));
    }
}
