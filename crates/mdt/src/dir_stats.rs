//! The parameter `dir_stats`: operations by directory, for `nacre top --by directory`.
//!
//! An operation counts for the directory whose entries it names or lists. The MDT records
//! operations only for [`RECORDING`] after each read of the parameter; otherwise an operation costs
//! one atomic load. Each shard has a maximum number of directories; all further directories share
//! the row [`OTHER`].

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
    time::{Duration, SystemTime},
};

use cpt::CptId;
use params::{KeyStats, KeyedStats};
use rpc::ServerRequest;
use tokio::time::Instant;
use wire::format::bufs;
use wire::{
    Fid, IT_GETATTR, IT_LOOKUP, IT_OPEN, LDLM_ENQUEUE, MDS_GETATTR_NAME, MDS_READPAGE, MDS_REINT, MdtBody,
    MdtRecCreate, MdtRecReint, REINT_CREATE, REINT_LINK, REINT_RENAME, REINT_UNLINK,
};

use crate::fid2path;
use crate::stats::{OPERATIONS, Op};
use crate::store::Store;

/// Time for which the MDT records operations after a read of the parameter.
const RECORDING: Duration = Duration::from_secs(60);
/// The row with the sums of the directories that did not fit into the table.
const OTHER: &str = "other directories";

/// The operations of each directory.
pub(crate) struct DirStats {
    started: Instant,
    /// End of the recording in milliseconds after `started`; 0 without recording.
    ends_at: AtomicU64,
    directories: KeyedStats<Fid>,
}

impl DirStats {
    /// Empty statistics, without recording. `shards` is the number of CPTs.
    pub(crate) fn new(shards: usize) -> DirStats {
        DirStats {
            started: Instant::now(),
            ends_at: AtomicU64::new(0),
            directories: KeyedStats::new(
                OPERATIONS,
                shards,
                Fid::ZERO,
                Arc::new(AtomicU64::new(RECORDING.as_secs())),
            ),
        }
    }

    /// Whether operations are recorded. Ends the recording if nobody has read for [`RECORDING`].
    pub(crate) fn is_recording(&self) -> bool {
        match self.ends_at.load(Relaxed) {
            0 => false,
            ends_at if self.now() < ends_at => true,
            ends_at => {
                let stopped = self.ends_at.compare_exchange(ends_at, 0, Relaxed, Relaxed);
                if stopped.is_ok() {
                    self.directories.retain(|_| false);
                }
                false
            }
        }
    }

    /// Counts an operation in a directory.
    pub(crate) fn add(&self, cpt: CptId, directory: Fid, op: Op, duration: Duration) {
        self.directories
            .add(cpt.0, &directory, &[op.sample(duration)], SystemTime::now());
    }

    /// The operations by the directory's path, or by its FID if it has none. Starts or continues
    /// the recording.
    pub(crate) fn read(&self, store: &Store) -> Vec<KeyStats<String>> {
        self.is_recording();
        let ends_at = self.now() + RECORDING.as_millis() as u64;
        self.ends_at.store(ends_at, Relaxed);
        let all = self.directories.all(SystemTime::now());
        let named = |stats: KeyStats<Fid>| KeyStats {
            key: name_of(store, stats.key),
            first: stats.first,
            last: stats.last,
            rows: stats.rows,
        };
        all.into_iter().map(named).collect()
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }
}

/// The path of a directory from the root; its FID if it has none, or if memory does not hold the
/// directories above it: the reader of a parameter does not wait for the index.
fn name_of(store: &Store, directory: Fid) -> String {
    if directory == Fid::ZERO {
        return OTHER.to_owned();
    }
    let path = pin!(fid2path::path(store, directory, 0, Fid::ROOT));
    match path.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(part)) if part.top.is_root() => format!("/{}", String::from_utf8_lossy(&part.path)),
        _ => directory.to_string(),
    }
}

/// The directory whose entries a request names or lists.
pub(crate) fn directory_of(req: &ServerRequest) -> Option<Fid> {
    let body_fid = |index| req.msg.get::<MdtBody>(index).ok().map(|body| body.mbo_fid1);
    match req.opc {
        MDS_REINT => {
            let rec: MdtRecReint = req.msg.get(bufs::REC_REINT).ok()?;
            match rec.rr_opcode {
                REINT_CREATE | REINT_UNLINK | REINT_RENAME => Some(rec.rr_fid1),
                REINT_LINK => Some(rec.rr_fid2),
                _ => None,
            }
        }
        LDLM_ENQUEUE => {
            let intent = req.buf(bufs::INTENT).first_chunk::<8>();
            match intent.map(|bytes| u64::from_le_bytes(*bytes))? {
                intent if intent & IT_OPEN != 0 => {
                    let rec: MdtRecCreate = req.msg.get(bufs::OPEN_REC).ok()?;
                    has_name(req, bufs::OPEN_NAME).then_some(rec.cr_fid1)
                }
                IT_GETATTR | IT_LOOKUP if has_name(req, bufs::INTENT_NAME) => body_fid(bufs::INTENT_BODY),
                _ => None,
            }
        }
        MDS_GETATTR_NAME | MDS_READPAGE => body_fid(bufs::MDT_BODY),
        _ => None,
    }
}

/// Whether a buffer has a name.
fn has_name(req: &ServerRequest, index: usize) -> bool {
    !wire::before_nul(req.buf(index)).is_empty()
}

#[cfg(test)]
mod tests {
    use super::{DirStats, OTHER, RECORDING};
    use crate::namespace::make_root;
    use crate::stats::Op;
    use crate::store::Store;
    use cpt::CptId;
    use osd::MemoryIndex;
    use std::sync::Arc;
    use std::time::Duration;
    use testbase::Wait;
    use wire::{Fid, Time};

    #[tokio::test(start_paused = true)]
    async fn operations_are_recorded_only_while_somebody_reads() {
        let store = Store::new(Arc::new(MemoryIndex::default()));
        assert!(make_root(&store, (0, 0), Time::default()).wait().is_ok());
        let stats = DirStats::new(2);
        assert!(!stats.is_recording());
        assert_eq!(stats.read(&store), []);
        tokio::time::advance(RECORDING / 2).await;
        assert!(stats.is_recording());
        let gone = Fid::new(0x2_0000_0401, 7, 0);
        for (cpt, directory) in [(0, Fid::ROOT), (1, Fid::ROOT), (0, gone), (1, Fid::ZERO)] {
            stats.add(CptId(cpt), directory, Op::GETATTR, Duration::from_micros(5));
        }
        let read = stats.read(&store);
        let counts: Vec<(&str, u64)> = read
            .iter()
            .map(|dir| {
                let samples = dir.rows.iter().map(|row| row.sums.count);
                (dir.key.as_str(), samples.sum())
            })
            .collect();
        let gone = gone.to_string();
        assert_eq!(counts, [(OTHER, 1), ("/", 2), (gone.as_str(), 1)]);
        // The second read continued the recording.
        tokio::time::advance(RECORDING * 3 / 4).await;
        assert!(stats.is_recording());
        tokio::time::advance(RECORDING / 4).await;
        assert!(!stats.is_recording());
        assert_eq!(
            stats.read(&store),
            [],
            "the counts of an earlier recording are gone"
        );
    }
}
