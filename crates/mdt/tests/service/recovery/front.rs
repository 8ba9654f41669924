//! A target between a client and the MDT. It passes on each request, records the requests that
//! clients may replay, and turns requests into replays.

use std::sync::Arc;

use bytes::Bytes;
use mdt::Mdt;
use params::Operations;
use parking_lot::Mutex;
use rpc::{BoxFuture, ConnectRequest, EndReason, Export, KeptReply, Reply, ReplyMsg, ServerRequest, Target};
use testbase::mds_client::Client;
use wire::{Errno, MSG_REPLAY, ObdConnectData, Transno, Xid};

pub(crate) const FRONT: &str = "testfs-MDT0007_UUID";

/// A request that the MDT executed.
#[derive(Clone)]
pub(crate) struct Executed {
    pub(crate) opc: u32,
    pub(crate) tag: u16,
    pub(crate) xid: Xid,
    pub(crate) transno: Transno,
    pub(crate) bufs: Vec<Bytes>,
    pub(crate) reply: Reply,
}

/// The treatment of the next request of an opcode.
enum Next {
    Replay(Executed),
    /// Rebuild the reply from the part that the MDT has kept.
    Rebuild(Executed, KeptReply),
}

pub(crate) struct Front {
    mdt: Mutex<Arc<Mdt>>,
    exports: Mutex<Vec<Arc<Export>>>,
    executed: Mutex<Vec<Executed>>,
    next: Mutex<Option<Next>>,
}

impl Front {
    pub(crate) fn new(mdt: &Arc<Mdt>) -> Arc<Front> {
        Arc::new(Front {
            mdt: Mutex::new(mdt.clone()),
            exports: Mutex::default(),
            executed: Mutex::default(),
            next: Mutex::default(),
        })
    }

    fn mdt(&self) -> Arc<Mdt> {
        self.mdt.lock().clone()
    }

    /// Ends the connections to the MDT. Clients do not notice.
    pub(crate) async fn end(&self, why: EndReason) {
        let exports = self.exports.lock().clone();
        for export in exports {
            self.mdt().export_gone(&export, why).await;
        }
    }

    /// Passes on requests to this MDT from now on.
    pub(crate) fn set_mdt(&self, mdt: &Arc<Mdt>) {
        *self.mdt.lock() = mdt.clone();
    }

    /// The changes and opens that the MDT has executed so far.
    pub(crate) fn executed(&self) -> Vec<Executed> {
        self.executed.lock().clone()
    }

    /// Replays a request.
    pub(crate) async fn replay(&self, client: &Client, request: &Executed) -> Result<ReplyMsg, Errno> {
        *self.next.lock() = Some(Next::Replay(request.clone()));
        client.call(request.opc, request.bufs.clone()).await
    }

    /// Resends a request that the MDT executed before a restart.
    pub(crate) async fn resend(
        &self,
        client: &Client,
        request: &Executed,
        kept: KeptReply,
    ) -> Result<ReplyMsg, Errno> {
        *self.next.lock() = Some(Next::Rebuild(request.clone(), kept));
        client.call(request.opc, request.bufs.clone()).await
    }

    fn take_next(&self, opc: u32) -> Option<Next> {
        self.next.lock().take_if(|next| match next {
            Next::Replay(request) | Next::Rebuild(request, _) => request.opc == opc,
        })
    }
}

impl Target for Front {
    fn uuid(&self) -> &str {
        FRONT
    }

    fn negotiate(&self, req: &ConnectRequest) -> Result<ObdConnectData, Errno> {
        self.mdt().negotiate(req)
    }

    fn last_committed(&self) -> Transno {
        self.mdt().last_committed()
    }

    fn replayable(&self) -> bool {
        true
    }

    fn operations(&self) -> Operations {
        self.mdt().operations()
    }

    fn handle<'a>(&'a self, req: &'a mut ServerRequest) -> BoxFuture<'a, Result<Reply, Errno>> {
        Box::pin(async move {
            let mdt = self.mdt();
            let is_new = self.exports.lock().iter().all(|e| e.handle != req.export.handle);
            if is_new {
                self.exports.lock().push(req.export.clone());
                mdt.remember_client(&req.export).await?;
            }
            match self.take_next(req.opc) {
                Some(Next::Replay(request)) => {
                    (req.xid, req.body.pb_tag) = (request.xid, request.tag);
                    req.body.pb_flags |= MSG_REPLAY;
                    req.body.pb_transno = request.transno.0;
                    mdt.handle(req).await
                }
                Some(Next::Rebuild(request, kept)) => {
                    (req.xid, req.body.pb_tag) = (request.xid, request.tag);
                    mdt.reconstruct(req, kept).await
                }
                None => {
                    let bufs = req.msg.bufs[1..].to_vec();
                    let reply = mdt.handle(req).await?;
                    if reply.transno != Transno::NONE {
                        self.executed.lock().push(Executed {
                            opc: req.opc,
                            tag: req.body.pb_tag,
                            xid: req.xid,
                            transno: reply.transno,
                            bufs,
                            reply: reply.clone(),
                        });
                    }
                    Ok(reply)
                }
            }
        })
    }

    fn export_gone<'a>(&'a self, _export: &'a Arc<Export>, _why: EndReason) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }
}
