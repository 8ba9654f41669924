//! What a lock's value block says: the size and times of an OST object, as the server of the objects knows them.

use super::LockServer;
use bytes::Bytes;
use rpc::{BoxFuture, Export};
use wire::{LdlmResId, OstLvb, Precision, Timed, WireStruct};

/// Whoever knows the value blocks of a lock server's resources.
pub trait LvbOps: Send + Sync + 'static {
    /// The resource's value block as it is now (an OST: `OstLvb`); `None` when it has none.
    fn fill<'a>(&'a self, res: &'a LdlmResId) -> BoxFuture<'a, Option<Bytes>>;

    /// A client said what it knows; or, with `None`, a lock for writing is gone, and what was cached is old.
    fn update<'a>(&'a self, res: &'a LdlmResId, lvb: Option<Bytes>) -> BoxFuture<'a, ()>;
}

impl LockServer {
    /// A resource's value block for this client; empty when there is none.
    pub(super) async fn lvb_for(&self, export: &Export, res: &LdlmResId) -> Bytes {
        self.lvb
            .fill(res)
            .await
            .map_or(Bytes::new(), |lvb| told(export, lvb))
    }
}

/// A value block with times as fine as the client understands.
pub(super) fn told(export: &Export, lvb: Bytes) -> Bytes {
    match (Precision::agreed(&export.data()), OstLvb::from_bytes(&lvb)) {
        (Precision::Seconds, Ok(mut whole)) => {
            whole.set_times(whole.times().at(Precision::Seconds));
            whole.to_bytes()
        }
        _ => lvb,
    }
}

/// Resources without value blocks: of an MDT, of an MGS.
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
