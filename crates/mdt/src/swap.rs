//! Swaps the layouts of two files: `MDS_SWAP_LAYOUTS`, and a close with `MDS_CLOSE_LAYOUT_SWAP` by
//! the holder of a lease. Clients copy a file's data into a volatile file with the wanted layout,
//! and then swap the layouts (`lfs migrate`).
//!
//! Before the swap, the target revokes all clients' locks on both layouts, so that no client uses
//! an object for its old file. After the swap, the target tells the OSTs to which file each object
//! belongs ([`Osts`]).
//!
//! [`Osts`]: crate::osp::Osts

use rpc::{Reply, ServerRequest};
use wire::format::bufs;
use wire::{
    CloseData, Errno, Fid, MDS_CLOSE_INTENT, MDS_CLOSE_LAYOUT_SWAP, MdtBody, MdtRecSetattr,
    OBD_MD_CLOSE_INTENT_EXECED,
};

use crate::{
    cred::Cred,
    handles::OpenFile,
    layout,
    locks::XATTR,
    namespace::{self, ChangeResult},
    store::RequestStore,
    target::{HandlerResult, Mdt},
};

impl Mdt {
    /// Executes `MDS_SWAP_LAYOUTS`.
    pub(crate) async fn swap_layouts(&self, req: &ServerRequest) -> HandlerResult {
        self.release_handles(req, &ldlm::handles_to_cancel(req.buf(bufs::SWAP_DLM_REQ), 0))
            .await;
        if let Some(transno) = self.replayed_transno(req) {
            // The first execution committed the swap before its reply.
            return Ok(Reply::default().with_transno(transno));
        }
        let body: MdtBody = req.get(bufs::MDT_BODY)?;
        let (a, b) = (body.mbo_fid1, body.mbo_fid2);
        self.check_writable(req)?;
        self.throttle().await;
        if a == b {
            return Ok(Reply::default());
        }
        let cred = self.cred_of_body(req, &body);
        self.check_files(&cred, a, b).await?;
        let mut locks = self.request_locks(req);
        // The holder of a lease relies on the file's contents, which the swap changes.
        for file in [a.min(b), a.max(b)] {
            locks.revoke_lease(file).await?;
            locks.lock_layout(file, XATTR).await?;
        }
        let change = self.swap_locked(&cred, self.request_store(req), (a, b)).await?;
        drop(locks);
        let mut reply = Reply::default().with_transno(change.transno);
        reply.pre_versions = change.pre_versions;
        Ok(reply)
    }

    /// Executes the intent of a close (`MDS_CLOSE_INTENT`), and cancels the lock of the client's
    /// lease. The caller closes the file even after an error.
    pub(crate) async fn execute_close_intent(
        &self,
        req: &ServerRequest,
        rec: &MdtRecSetattr,
        closing: OpenFile,
    ) -> Result<(), Errno> {
        let result = match rec.sa_bias & MDS_CLOSE_INTENT {
            MDS_CLOSE_LAYOUT_SWAP => self.swap_on_close(req, rec, closing).await,
            bias => {
                lnet::warn_rate_limited!(peer = %req.peer, client = %req.export.client_uuid, bias, "MDS_CLOSE intent unsupported (layout merge, HSM release); the file was closed");
                Err(Errno::EOPNOTSUPP)
            }
        };
        if let Ok(data) = req.get::<CloseData>(bufs::CLOSE_DATA) {
            self.locks.server().cancel(&req.export, &[data.cd_handle.cookie]);
        }
        result
    }

    async fn swap_on_close(
        &self,
        req: &ServerRequest,
        rec: &MdtRecSetattr,
        closing: OpenFile,
    ) -> Result<(), Errno> {
        let data: CloseData = req.get(bufs::CLOSE_DATA)?;
        let (a, b) = (closing.fid, data.cd_fid);
        self.check_writable(req)?;
        if a == b || rec.sa_fid != a {
            return Err(Errno::EINVAL);
        }
        let cred = self.effective_cred(
            req,
            Cred {
                fsuid: rec.sa_fsuid,
                fsgid: rec.sa_fsgid,
                suppgids: [rec.sa_suppgid, u32::MAX],
                cap: rec.sa_cap,
                ..Cred::default()
            },
        );
        let (server, lease) = (self.locks.server(), data.cd_handle.cookie);
        let has_lease = || closing.mode.is_lease() && server.holds(&req.export, lease, &a.res_id());
        if !has_lease() {
            return Err(Errno::ESTALE);
        }
        self.check_files(&cred, a, b).await?;
        let mut locks = self.request_locks(req);
        for file in [a.min(b), a.max(b)] {
            locks.lock_layout(file, XATTR).await?;
        }
        // From here on, no client has a lock on the layout, so none writes. If a client opened the
        // file for write earlier, its open revoked the lease.
        if !has_lease() {
            return Err(Errno::ESTALE);
        }
        // If the target stops before it closes the file, the client's repeated request must not
        // swap the layouts again.
        let store = self.request_store(req).with_data(OBD_MD_CLOSE_INTENT_EXECED);
        self.swap_locked(&cred, store, (a, b)).await.map(drop)
    }

    /// Checks the two files of a swap, before the MDT revokes locks on them.
    async fn check_files(&self, cred: &Cred, a: Fid, b: Fid) -> Result<(), Errno> {
        for file in [a, b] {
            namespace::check_fid(file)?;
        }
        namespace::check_swap(cred, &self.store.inode(a).await?, &self.store.inode(b).await?)
    }

    /// Swaps the layouts of two files; the caller has locked them. Waits until the swap is on disk:
    /// once the caller releases the locks, clients write by the new layouts, and the OSTs record
    /// the new files. From then on, a crash must not undo the swap.
    async fn swap_locked(
        &self,
        cred: &Cred,
        store: RequestStore<'_>,
        (a, b): (Fid, Fid),
    ) -> Result<ChangeResult, Errno> {
        let (first, second) = (self.store.inode(a).await?, self.store.inode(b).await?);
        namespace::check_swap(cred, &first, &second)?;
        let objects = [layout::objects(&first.lov)?, layout::objects(&second.lov)?].concat();
        let _adoption_guards = self.osts.detach_objects(&objects).await?;
        let change = namespace::swap_layouts(store, cred, (a, b)).await?;
        self.store.index().sync().await?;
        Ok(change)
    }
}
