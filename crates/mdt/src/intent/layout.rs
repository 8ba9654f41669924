//! The layout intent: a file's layout, with a lock on it.

use ldlm::LockMode;
use rpc::ServerRequest;
use wire::{DISP_IT_EXECD, Errno, Fid, LdlmRequest};

use super::IntentResult;
use crate::{locks, target::Mdt};

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
        if let Err(e) = self.store.inode(fid).await {
            out.errno = Some(e);
            return Ok(out);
        }
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
            }
            Err(e) => {
                server.cancel(&req.export, &[lock.handle]);
                out.errno = Some(e);
            }
        }
        Ok(out)
    }
}
