//! Value blocks of the objects' locks: size, blocks and times, as the store has them.

use std::sync::Arc;

use bytes::Bytes;
use ldlm::LvbOps;
use osd::Objects;
use rpc::BoxFuture;
use wire::{LdlmResId, OstId, WireStruct};

use crate::{attr, sequence::Sequences};

/// Reads them from the store every time: objects in use are in its memory, and of one that was never written it knows that.
pub(crate) struct Lvbs {
    pub(crate) objects: Arc<dyn Objects>,
    pub(crate) sequences: Arc<Sequences>,
}

impl LvbOps for Lvbs {
    fn fill<'a>(&'a self, res: &'a LdlmResId) -> BoxFuture<'a, Option<Bytes>> {
        Box::pin(async move {
            let fid = self.sequences.fid(&OstId {
                oi_id: res.name[0],
                oi_seq: res.name[1],
            });
            match attr::of(&*self.objects, &self.sequences, fid).await {
                Ok(attr) => Some(attr::lvb(attr.as_ref()).to_bytes()),
                Err(e) => {
                    tracing::error!(%fid, "attributes: {e}");
                    Some(attr::lvb_error(e.errno()).to_bytes())
                }
            }
        })
    }

    fn update<'a>(&'a self, _res: &'a LdlmResId, _lvb: Option<Bytes>) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }
}
