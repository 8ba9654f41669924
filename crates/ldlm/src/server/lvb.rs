//! A lock server's questions to its target about resources: their lock value blocks (LVB), which
//! are the size, blocks and times of an OST object or of a file's data on an MDT, as the target
//! knows them, and their parts of the target.

use super::LockServer;
use bytes::Bytes;
use rpc::{BoxFuture, Export, Part};
use wire::{HasTimes, LdlmResId, OstLvb, Precision, WireStruct};

/// A lock server's target, as far as the resources are concerned.
pub trait LvbOps: Send + Sync + 'static {
    /// The current value block of a resource (of data: `OstLvb`); `None` if it has none.
    fn fill<'a>(&'a self, res: &'a LdlmResId) -> BoxFuture<'a, Option<Bytes>>;

    /// Takes a value block that a client has reported; with `None`, discards a cached one, because
    /// a write lock is gone.
    fn update<'a>(&'a self, res: &'a LdlmResId, lvb: Option<Bytes>) -> BoxFuture<'a, ()>;

    /// The part of the target to which a resource belongs ([`Export::claim`]); `None` if the target
    /// keeps no records of what its clients hold there.
    fn part(&self, _res: &LdlmResId) -> Option<Part> {
        None
    }
}

impl LockServer {
    /// The value block of a resource for a client; empty if there is none.
    pub(super) async fn lvb_for(&self, export: &Export, res: &LdlmResId) -> Bytes {
        self.lvb
            .fill(res)
            .await
            .map_or(Bytes::new(), |lvb| with_client_precision(export, lvb))
    }
}

/// Reduces the times to the precision that the client supports.
pub(super) fn with_client_precision(export: &Export, lvb: Bytes) -> Bytes {
    match (export.precision(), OstLvb::from_bytes(&lvb)) {
        (Precision::Seconds, Ok(mut whole)) => {
            whole.set_times(whole.times().at(Precision::Seconds));
            whole.to_bytes()
        }
        _ => lvb,
    }
}

/// For targets without value blocks: the MGS.
#[derive(Clone, Copy, Debug)]
pub struct NoLvb;

impl LvbOps for NoLvb {
    fn fill<'a>(&'a self, _res: &'a LdlmResId) -> BoxFuture<'a, Option<Bytes>> {
        Box::pin(std::future::ready(None))
    }

    fn update<'a>(&'a self, _res: &'a LdlmResId, _lvb: Option<Bytes>) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }
}
