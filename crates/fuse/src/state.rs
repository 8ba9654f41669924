//! The state shared by all requests of a mount, and the execution of a request.

use crate::busy_poll::BusyPoll;
use crate::convert::errno;
use crate::flock::FileLockOwners;
use crate::handles::Handles;
use crate::nodes::Nodes;
use crate::notify::Invalidator;
use crate::reply::ReplyError;
use crate::requester::Requester;
use bytes::Bytes;
use client::{Client, Cred, DirHandle, FoundFile, OpenFile, OpenFlags};
use cpt::Handle;
use fuser::{Errno, FileHandle, FopenFlags, INodeNo, LockOwner, ReplyAttr, ReplyEntry, WriteFlags};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use wire::{Fid, Time};

/// Cache lifetime of names and attributes under a lock. The client invalidates them earlier if it
/// cancels the lock.
const LOCKED_TTL: Duration = Duration::from_secs(24 * 3600);

/// Cache lifetime of names or attributes; `is_locked`: a lock covers them.
pub(crate) fn cache_ttl(is_locked: bool) -> Duration {
    if is_locked { LOCKED_TTL } else { Duration::ZERO }
}

/// Largest number of operations that run on after their requester was interrupted; closes do not
/// count.
const DETACHED_MAX: usize = 4096;

/// The state shared by all requests of a mount.
pub(crate) struct State {
    pub(crate) client: Arc<Client>,
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) files: Handles<OpenFile>,
    pub(crate) dirs: Handles<DirHandle>,
    pub(crate) lock_owners: Arc<FileLockOwners>,
    pub(crate) runtime: Handle,
    /// Whether reads and writes bypass the kernel's page cache, which then serves only mappings.
    direct_io: AtomicBool,
    /// Permits for operations other than closes that run on after their requester was interrupted.
    detach_permits: Arc<Semaphore>,
    /// Set once the device is open.
    pub(crate) busy_poll: OnceLock<BusyPoll>,
    /// Set once the device is open.
    pub(crate) kernel: OnceLock<Arc<Invalidator>>,
}

impl State {
    /// `root_btime`: birth time of the root directory; zero if unknown.
    pub(crate) fn new(client: Arc<Client>, root_btime: Time, runtime: Handle, direct_io: bool) -> State {
        State {
            nodes: Arc::new(Nodes::new(client.root(), root_btime)),
            client,
            files: Handles::new(),
            dirs: Handles::new(),
            lock_owners: Arc::default(),
            runtime,
            direct_io: AtomicBool::new(direct_io),
            detach_permits: Arc::new(Semaphore::new(DETACHED_MAX)),
            busy_poll: OnceLock::new(),
            kernel: OnceLock::new(),
        }
    }

    pub(crate) fn direct_io(&self) -> bool {
        self.direct_io.load(Ordering::Relaxed)
    }

    /// Uses the page cache for all I/O, because this kernel cannot map files opened for direct I/O.
    pub(crate) fn use_page_cache(&self) {
        self.direct_io.store(false, Ordering::Relaxed);
    }

    /// The `FOPEN_*` flags of the reply to an open. The file's cached pages stay valid: the client
    /// read them under a lock, and invalidates them when it cancels that lock.
    ///
    /// With [`State::direct_io`], all reads and writes bypass the page cache. Appends and files
    /// opened with O_DIRECT always bypass it. There are two reasons:
    ///
    /// - A read through the page cache ends at the size that the kernel has cached. If an
    ///   invalidation arrives while the kernel handles a reply with a newer size, the kernel drops
    ///   that reply (`attr_version` in fs/fuse/inode.c). The reader could then miss data appended
    ///   by another client.
    /// - A write through the page cache would hold page locks while it waits for its extent lock,
    ///   and cancelling a lock waits for the kernel to release such pages.
    ///
    /// Appends are not parallel, because each one needs the end of the file from the servers.
    pub(crate) fn fopen_flags(&self, flags: &OpenFlags) -> FopenFlags {
        let keep_cache = FopenFlags::FOPEN_KEEP_CACHE;
        if flags.append {
            keep_cache | FopenFlags::FOPEN_DIRECT_IO
        } else if self.direct_io() || flags.direct {
            keep_cache | FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
        } else {
            keep_cache
        }
    }

    /// Runs a request that may stop halfway, such as a read, a write or a wait for a lock. When the
    /// requester is interrupted, drops `work` and replies with EINTR.
    pub(crate) fn run_interruptible<T, R: ReplyError>(
        self: &Arc<Self>,
        requester: Requester,
        reply: R,
        work: impl Future<Output = Result<T, wire::Errno>> + Send + 'static,
        answer: impl FnOnce(&State, T, R) + Send + 'static,
    ) where
        T: Send,
    {
        let state = self.clone();
        let work = self.client.run_for(requester.caller(), work);
        self.start(async move {
            let result = tokio::select! {
                biased;
                result = work => result,
                () = requester.wait_for_interruption() => Err(wire::Errno::EINTR),
            };
            match result {
                Ok(value) => answer(&state, value, reply),
                Err(e) => reply.reply_error(errno(e)),
            }
        });
    }

    /// Runs a request that must complete, such as a change of names or a close. If the requester is
    /// interrupted, it gets EINTR and `work` runs on. While [`DETACHED_MAX`] operations run on, an
    /// interrupted requester waits, except for a close.
    pub(crate) fn run_to_completion<T, R: ReplyError>(
        self: &Arc<Self>,
        requester: Requester,
        reply: R,
        work: impl Future<Output = Result<T, wire::Errno>> + Send + 'static,
        answer: impl FnOnce(&State, T, R) + Send + 'static,
    ) where
        T: Send,
    {
        let state = self.clone();
        let work = self.client.run_for(requester.caller(), work);
        self.start(async move {
            let mut work = pin!(work);
            let result = tokio::select! {
                biased;
                result = &mut work => result,
                permit = state.wait_to_detach(requester) => {
                    reply.reply_error(Errno::EINTR);
                    drop(work.await);
                    return drop(permit);
                }
            };
            match result {
                Ok(value) => answer(&state, value, reply),
                Err(e) => reply.reply_error(errno(e)),
            }
        });
    }

    /// Returns when the requester is interrupted and may leave the operation running. A close needs
    /// no permit: there are no more closes than open files.
    async fn wait_to_detach(&self, requester: Requester) -> Option<OwnedSemaphorePermit> {
        requester.wait_for_interruption().await;
        match requester {
            Requester::Closer(_) => None,
            _ => self.detach_permits.clone().acquire_owned().await.ok(),
        }
    }

    /// Starts a request on the thread that read it. If it has to wait, it continues on the runtime.
    /// Replies from the caches, or from a server in this process, thus need no thread switch.
    fn start(&self, work: impl Future<Output = ()> + Send + 'static) {
        let start = || cpt::poll_then_spawn(&self.runtime, work);
        match self.busy_poll.get() {
            Some(busy_poll) => busy_poll.run_and_poll(start),
            None => start(),
        }
    }

    /// The FID of an inode number.
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

    /// Reads for the program with the lock owner `reader`. `None`: the kernel reads pages; with
    /// direct I/O, these are always pages of a mapping.
    pub(crate) async fn read(
        &self,
        file: &OpenFile,
        offset: u64,
        len: usize,
        reader: Option<LockOwner>,
    ) -> Result<Vec<Bytes>, wire::Errno> {
        if reader.is_none() && self.direct_io() {
            self.client.read_mapped(file, offset, len).await
        } else {
            self.client.read(file, offset, len).await
        }
    }

    /// Writes data of a write call, or of a mapping.
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

    /// Replies with a file found in this directory. The kernel gets a reference to the file.
    pub(crate) fn send_entry(&self, dir: INodeNo, found: FoundFile, reply: ReplyEntry) {
        let node = self.entry_attr(dir, &found);
        let generation = self.nodes.generation(found.attr.fid);
        reply.entry_with_ttls(&node.attr_ttl, &node.name_ttl, &node.attr, generation);
    }

    /// Replies with a file's attributes.
    pub(crate) fn send_attr(&self, (ino, found): (INodeNo, FoundFile), reply: ReplyAttr) {
        if self.nodes.is_alias(ino.0) {
            // Programs must see the directory's own number.
            let number = self.nodes.shown_ino(found.attr.fid);
            return reply.attr(&Duration::ZERO, &self.nodes.attr(number, &found));
        }
        reply.attr(&cache_ttl(found.attr_cached), &self.nodes.attr(ino.0, &found));
    }
}
