//! The metadata target: its parts, its start and stop, and the dispatch of requests.

mod dispatch;
mod newcomers;
mod recovery;
mod start;

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::SystemTime,
};

use bytes::Bytes;
use ldlm::LockLimits;
use mgc::{CachedRights, CapaKeyring, FsConfig, Nodemaps, Rights};
use osd::check::Progress;
use params::{Group, Registry};
use parking_lot::Mutex;
use rpc::{Export, Ptlrpc, Reply, ServerRequest};
use tokio::{sync::watch, task::JoinHandle};
use wire::format::bufs;
use wire::{Errno, Fid, LockTerms, MdtBody, OBD_CONNECT_RDONLY, Precision, Time, WireStruct};

pub(crate) use self::newcomers::part_of;
use self::recovery::Recovery;
use crate::{
    body,
    cred::Cred,
    dir_stats::DirStats,
    handles::{Cookies, Handles},
    intent::DataWithOpen,
    layout,
    locks::{Locks, RequestLocks},
    osp::Osts,
    peers::Peers,
    sequence_owners::SequenceOwners,
    sequences::Sequences,
    squash::{self, Squash},
    store::{Store, UnusedFid},
    updates::Updates,
};

/// Configuration of an MDT.
#[derive(Clone)]
pub struct MdtConfig {
    /// The name of the file system.
    pub fsname: String,
    /// The target's index.
    pub index: u32,
    /// Seed of the lock server's random numbers.
    pub seed: u64,
    /// The registry for the MDT's parameters.
    pub params: Registry,
    /// Limits on the number of the clients' locks.
    pub locks: Arc<LockLimits>,
    /// The clock of the MDT, for times that the MDT sets or compares with the clients' times.
    pub clock: WallClock,
    /// The nodemaps, which set the clients' rights.
    pub nodemaps: Arc<Nodemaps>,
    /// The keys that sign capabilities.
    pub capa_keys: Arc<CapaKeyring>,
}

/// A source of the time of day: the system's clock, or a function of a test.
#[derive(Clone)]
pub struct WallClock(Arc<dyn Fn() -> Time + Send + Sync>);

impl WallClock {
    /// A clock that calls a function.
    pub fn new(now: impl Fn() -> Time + Send + Sync + 'static) -> WallClock {
        WallClock(Arc::new(now))
    }

    /// The time of day.
    pub fn now(&self) -> Time {
        (self.0)()
    }
}

impl Default for WallClock {
    fn default() -> WallClock {
        WallClock::new(wall_clock)
    }
}

impl MdtConfig {
    /// The target's name, such as `testfs-MDT0000`.
    pub fn svname(&self) -> String {
        format!("{}-MDT{:04x}", self.fsname, self.index)
    }
}

/// A metadata target.
pub struct Mdt {
    uuid: String,
    /// The target's index.
    pub(crate) index: u32,
    rpc: Arc<Ptlrpc>,
    /// The targets of the file system, as the MGS knows them.
    pub(crate) config: watch::Receiver<Arc<FsConfig>>,
    nodemaps: Arc<Nodemaps>,
    pub(crate) capa_keys: Arc<CapaKeyring>,
    pub(crate) store: Arc<Store>,
    pub(crate) locks: Locks,
    /// The other MDTs.
    pub(crate) peers: Arc<Peers>,
    pub(crate) sequences: Arc<Sequences>,
    /// Operations with other MDTs.
    pub(crate) updates: Arc<Updates>,
    pub(crate) sequence_owners: SequenceOwners,
    recovery: Recovery,
    pub(crate) osts: Osts,
    pub(crate) cookies: Cookies,
    pub(crate) squash: Arc<Squash>,
    pub(crate) dir_stats: DirStats,
    pub(crate) clock: WallClock,
    /// `mdd.*.atime_diff`, seconds.
    pub(crate) atime_diff: Arc<AtomicU64>,
    /// `mdt.*.capa_timeout`, seconds.
    pub(crate) capa_timeout: Arc<AtomicU64>,
    /// `lod.*.dom_stripesize`: the largest part of a file on the MDT, bytes.
    pub(crate) on_mdt_max: Arc<AtomicU64>,
    /// `mdt.*.dom_lock` and `mdt.*.dom_read_open`.
    pub(crate) data_with_open: DataWithOpen,
    /// Stops the background scans of a start: for orphan objects after a crash, and to count the
    /// inodes.
    start_scans: Arc<Progress>,
    /// The task that scans for orphan objects. It returns whether the scan is complete.
    orphan_scan: Mutex<Option<JoinHandle<bool>>>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    /// The registered parameters.
    groups: Mutex<Vec<Group>>,
}

/// Minimum value of `mbo_max_mdsize`, bytes. With this minimum, the value does not change when an
/// OST joins a small file system.
const MIN_MDSIZE: usize = 128;

impl Mdt {
    /// The statistics of the locks.
    #[cfg(feature = "sim")]
    pub fn lock_stats(&self) -> ldlm::LockStats {
        self.locks.server().stats()
    }

    /// Pairs of granted locks of different clients that conflict; there must be none.
    #[cfg(feature = "sim")]
    pub fn granted_conflicts(&self) -> Vec<String> {
        self.locks.server().granted_conflicts()
    }

    /// The target's UUID, such as `testfs-MDT0000_UUID`.
    pub fn uuid(&self) -> &str {
        &self.uuid
    }

    /// The target's name, such as `testfs-MDT0000`.
    pub(crate) fn svname(&self) -> &str {
        self.uuid.trim_end_matches("_UUID")
    }

    /// Size of the longest possible layout, bytes; at least [`MIN_MDSIZE`].
    pub(crate) fn max_mdsize(&self) -> u32 {
        layout::max_size(self.osts.len()).max(MIN_MDSIZE) as u32
    }

    /// Back-pressure: waits while too many changes are not yet on disk. The caller holds no lock.
    pub(crate) async fn throttle(&self) {
        self.store.index().throttle().await;
    }

    /// The identity with which the MDT executes a request that claims the identity `claimed`. The
    /// client's nodemap squashes it, or else `root_squash`.
    pub(crate) fn effective_cred(&self, req: &ServerRequest, claimed: Cred) -> Cred {
        let cred = match self.rights(&req.export).squash(claimed.fsuid) {
            Some((uid, gid)) => squash::squash_to(&claimed, uid, gid),
            None => self.squash.apply(claimed, req.peer),
        };
        Cred {
            is_replay: self.is_replay(req) && self.trusts(req),
            ..cred
        }
    }

    /// Whether the client has all rights, so that it may act as any user. Only replays of such a
    /// client skip checks of permission: the flag of a replay is the client's claim.
    pub(crate) fn trusts(&self, req: &ServerRequest) -> bool {
        let rights = self.rights(&req.export);
        rights.admin && rights.trusted && !self.squash.affects(req.peer)
    }

    /// The rights that the nodemap gives a client; all rights for a server.
    pub(crate) fn rights(&self, export: &Arc<Export>) -> Rights {
        if export.is_server() {
            return Rights::ALL;
        }
        self.nodemaps.rights(&export.ext::<CachedRights>(), export.peer())
    }

    /// Checks that the client may change the file system. `EROFS` if its nodemap or its mount is
    /// read-only.
    pub(crate) fn check_writable(&self, req: &ServerRequest) -> Result<(), Errno> {
        let read_only = self.rights(&req.export).readonly_mount;
        if read_only {
            lnet::warn_rate_limited!(peer = %req.peer, client = %req.export.client_uuid, opc = req.opc, "change refused with EROFS: the nodemap of the client's NID has readonly_mount=1");
        }
        match read_only || req.export.has(OBD_CONNECT_RDONLY) {
            true => Err(Errno::EROFS),
            false => Ok(()),
        }
    }

    /// Executes `MDS_SET_INFO`: the client remounts read-only, or read-write.
    pub(crate) fn set_info(&self, req: &ServerRequest) -> HandlerResult {
        if wire::before_nul(req.buf(bufs::SET_INFO_KEY)) != wire::KEY_READ_ONLY.as_bytes() {
            return Err(Errno::ENOTSUPP);
        }
        let value = req
            .buf(bufs::SET_INFO_VALUE)
            .first_chunk::<4>()
            .ok_or(Errno::EPROTO)?;
        let read_only = u32::from_le_bytes(*value) != 0;
        if !read_only && self.rights(&req.export).readonly_mount {
            return Err(Errno::EROFS);
        }
        req.export.set_read_only(read_only);
        Ok(Reply::status(0))
    }

    /// The identity in a request's body, mapped by [`Mdt::effective_cred`].
    pub(crate) fn cred_of_body(&self, req: &ServerRequest, body: &MdtBody) -> Cred {
        let claimed = Cred {
            fsuid: body.mbo_fsuid,
            fsgid: body.mbo_fsgid,
            suppgids: [body.mbo_suppgid, u32::MAX],
            cap: body.mbo_capability,
            ..Cred::default()
        };
        self.effective_cred(req, claimed)
    }

    /// Checks the FID that a client chose for a new inode. `EPERM` if the sequence does not belong
    /// to the client, `EEXIST` if the FID is in use.
    pub(crate) async fn check_new_fid(&self, req: &ServerRequest, fid: Fid) -> Result<UnusedFid, Errno> {
        let was_allocated = || self.sequences.was_allocated(fid.f_seq);
        if self.sequence_owners.claim(&req.export, fid.f_seq, was_allocated) {
            req.export.claim_group(fid.f_seq).await?;
            return self.store.unused_fid(fid).await?.ok_or(Errno::EEXIST);
        }
        lnet::warn_rate_limited!(client = %req.export.client_uuid, peer = %req.peer, %fid, "create refused: the FID's sequence does not belong to the client");
        Err(Errno::EPERM)
    }

    /// The other MDT that has an inode; `None` if this one has it, or if it is the only one.
    ///
    /// # Errors
    ///
    /// `EINPROGRESS` if no MDT answers that knows the location of the FID; `ENOENT` if no MDT has
    /// the FID's sequence.
    pub(crate) async fn other_mdt_of(&self, fid: Fid) -> Result<Option<u32>, Errno> {
        let mdt = self.updates.mdt_of(fid).await?;
        Ok((mdt != self.updates.index()).then_some(mdt))
    }

    /// Whether another MDT has the inode of a name.
    pub(crate) async fn is_remote(&self, fid: Fid) -> Result<bool, Errno> {
        if self.peers.is_empty() || self.store.find(fid).await?.is_some() {
            return Ok(false);
        }
        // The client asks for the location of a sequence that this MDT does not know.
        let range = self.sequences.lookup(&Sequences::range_of(fid));
        Ok(!range.is_ok_and(|range| range.lsr_index == self.updates.index()))
    }

    /// An empty set of locks for a request. The client keeps its own locks if it negotiated
    /// [`LockTerms::Nacre`].
    pub(crate) fn request_locks<'a>(&'a self, req: &'a ServerRequest) -> RequestLocks<'a> {
        let keeps_own_locks = lock_terms(req) == LockTerms::Nacre;
        self.locks.request_locks(Some(&req.export), keeps_own_locks)
    }

    /// The open files of a client.
    pub(crate) fn handles(&self, export: &Arc<Export>) -> Arc<Handles> {
        export.ext::<Handles>()
    }
}

/// The name in buffer `i` of a request, without its NUL; shares the request's memory.
pub(crate) fn name_of(req: &ServerRequest, i: usize) -> Bytes {
    let buf = req.bytes(i);
    let len = wire::before_nul(&buf).len();
    buf.slice(..len)
}

/// The system's time of day.
pub(crate) fn wall_clock() -> Time {
    SystemTime::now().into()
}

/// The precision of times that the client and this target negotiated.
pub(crate) fn precision(req: &ServerRequest) -> Precision {
    req.export.precision()
}

/// The lock terms that the client negotiated.
pub(crate) fn lock_terms(req: &ServerRequest) -> LockTerms {
    req.export.lock_terms()
}

impl Mdt {
    /// Appends the attributes of a directory to the reply to a change of names in it, if the client
    /// keeps its lock on the directory.
    pub(crate) async fn append_dir_attrs(&self, req: &ServerRequest, dir: Fid, mut reply: Reply) -> Reply {
        if lock_terms(req) == LockTerms::Nacre
            && let Ok(inode) = self.store.inode(dir).await
        {
            let body = body::basic_body(dir, &inode, precision(req));
            reply.bufs.push(body.to_bytes());
        }
        reply
    }
}

/// A reply with `bufs` and then empty buffers, up to the `count` buffers of the reply's format.
pub(crate) fn reply(count: usize, bufs: impl IntoIterator<Item = Bytes>) -> Reply {
    let mut bufs: Vec<Bytes> = bufs.into_iter().collect();
    bufs.resize(count.max(bufs.len()), Bytes::new());
    Reply::new(bufs)
}

/// The reply to a request that another MDT must execute: the one with the inode `fid`.
pub(crate) fn elsewhere(fid: Fid, count: usize, errno: Errno) -> Reply {
    reply(count, [body::elsewhere(fid).to_bytes()]).with_status(errno.status())
}

/// The result of a request handler.
pub(crate) type HandlerResult = Result<Reply, Errno>;
