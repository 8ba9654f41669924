//! socklnd skeleton.
use crate::core::Core;
use crate::message::Msg;
use crate::tasks::Tasks;
use crate::{LnetConfig, LnetError, PeerEvent};
use cpt::CptTable;
use std::sync::Arc;
use tokio::sync::broadcast;
use wire::Nid;

#[derive(Debug)]
pub(crate) struct Tcp {}

impl Tcp {
    pub(crate) fn new(
        _core: Arc<Core>,
        _cpts: Arc<CptTable>,
        _cfg: LnetConfig,
        _tasks: Arc<Tasks>,
        _events: broadcast::Sender<PeerEvent>,
        _incarnation: u64,
    ) -> Arc<Tcp> {
        Arc::new(Tcp {})
    }
    pub(crate) async fn add(&self, nid: Nid, _listen: bool) -> Result<(), LnetError> {
        Err(LnetError::NotTcp { nid })
    }
    pub(crate) async fn send(&self, msg: Msg) -> Result<(), LnetError> {
        Err(LnetError::NoRoute { peer: msg.dst })
    }
    pub(crate) async fn finish(&self) {}
}
