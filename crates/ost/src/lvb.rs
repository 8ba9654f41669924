//! Lock value blocks of objects: size, blocks and times from the store.

use std::sync::Arc;

use bytes::Bytes;
use ldlm::LvbOps;
use osd::{Objects, obdo};
use rpc::{BoxFuture, Part};
use wire::{LdlmResId, OstId, WireStruct};

use crate::{attr, newcomers, sequence::Sequences};

/// Fills value blocks from the store on every request. That is fast: the store has the attributes
/// of recently used objects in memory, and needs no I/O for an object that this run of the target
/// created and no client has changed.
pub(crate) struct ObjectLvbs {
    pub(crate) objects: Arc<dyn Objects>,
    pub(crate) sequences: Arc<Sequences>,
}

impl LvbOps for ObjectLvbs {
    fn fill<'a>(&'a self, res: &'a LdlmResId) -> BoxFuture<'a, Option<Bytes>> {
        Box::pin(async move {
            let fid = self.sequences.fid(&OstId {
                oi_id: res.name[0],
                oi_seq: res.name[1],
            });
            match attr::load(&*self.objects, &self.sequences, fid).await {
                Ok(attr) => Some(obdo::lvb(attr.as_ref()).to_bytes()),
                Err(e) => {
                    tracing::error!(%fid, "cannot read attributes for a lock value block: {e}");
                    Some(obdo::lvb_error(e.errno()).to_bytes())
                }
            }
        })
    }

    fn update<'a>(&'a self, _res: &'a LdlmResId, _lvb: Option<Bytes>) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }

    fn part(&self, res: &LdlmResId) -> Option<Part> {
        Some(newcomers::part_of_resource(res, &self.sequences))
    }
}
