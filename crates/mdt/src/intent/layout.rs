//! The layout intent: a file's layout, with a lock on it. Before a client writes or truncates, the
//! intent also requests the missing objects of a range.

use std::ops::Range;

use ldlm::LockMode;
use rpc::ServerRequest;
use wire::format::bufs;
use wire::{DISP_IT_EXECD, Errno, Fid, LAYOUT_INTENT_TRUNC, LAYOUT_INTENT_WRITE, LayoutIntent, LdlmRequest};

use super::IntentResult;
use crate::{locks, target::Mdt};

/// The range of a file in which the intent requests objects; `None` if it requests none.
fn range_to_create(req: &ServerRequest) -> Option<Range<u64>> {
    // A request for the layout alone may come without this buffer.
    let intent: LayoutIntent = req.get(bufs::LAYOUT_INTENT).ok()?;
    let range = intent.lai_extent.e_start..intent.lai_extent.e_end;
    [LAYOUT_INTENT_WRITE, LAYOUT_INTENT_TRUNC]
        .contains(&intent.lai_opc)
        .then_some(range)
}

impl Mdt {
    pub(super) async fn intent_layout(
        &self,
        req: &ServerRequest,
        cookie: u64,
        dlm: &LdlmRequest,
    ) -> Result<IntentResult, Errno> {
        let fid = Fid::from_res_id(&dlm.lock_desc.l_resource.lr_name);
        let mut out = IntentResult {
            disposition: DISP_IT_EXECD,
            ..IntentResult::default()
        };
        if let Err(e) = self.lock_layout_for(req, cookie, fid, &mut out).await {
            out.errno = Some(e);
        }
        Ok(out)
    }

    /// Creates the objects that the intent requests, and grants the client a lock on the layout.
    async fn lock_layout_for(
        &self,
        req: &ServerRequest,
        cookie: u64,
        fid: Fid,
        out: &mut IntentResult,
    ) -> Result<(), Errno> {
        match (range_to_create(req), self.replayed_transno(req)) {
            // The first execution committed the objects before its reply.
            (_, Some(transno)) => out.transno = transno,
            (Some(range), None) => {
                if let Some(change) = self.create_missing_objects(req, fid, &range).await? {
                    out.transno = change.transno;
                }
            }
            (None, None) => {}
        }
        self.store.inode(fid).await?;
        let server = self.locks.server();
        let lock = server
            .grant_to(&req.export, cookie, fid.res_id(), LockMode::Cr, locks::LAYOUT, 0)
            .await?;
        match self.store.inode(fid).await {
            Ok(inode) => {
                out.bufs = vec![if inode.is_file() {
                    inode.lov
                } else {
                    Default::default()
                }];
                out.lock = lock;
                Ok(())
            }
            Err(e) => {
                server.cancel(&req.export, &[lock.handle]);
                Err(e)
            }
        }
    }
}
