//! Lookup and getattr intents: attributes by name or FID, with a lock on the inode.

use rpc::ServerRequest;
use wire::format::bufs;
use wire::{
    DISP_IT_EXECD, DISP_LOOKUP_EXECD, DISP_LOOKUP_NEG, DISP_LOOKUP_POS, Errno, Fid, MdtBody,
    OBD_CONNECT_LAYOUTLOCK, OBD_MD_FLCROSSREF, WireStruct,
};

use bytes::Bytes;
use ldlm::LockMode;

use super::{IntentResult, LOOKUP};
use crate::{
    body::{self, Attrs},
    locks, namespace,
    store::Inode,
    target::{Mdt, name_of},
};

/// `IT_LOOKUP` gets the UPDATE bit only if the inode has not changed for this time, seconds: if an
/// inode changes often, its lock would soon be revoked (Lustre's `ctime_age_limit`). `IT_GETATTR`
/// always gets the bit.
const QUIET_SECS: i64 = 10;

/// The parameters of a lookup or getattr intent.
pub(super) struct LookupRequest {
    /// The client's handle of the lock.
    pub(super) cookie: u64,
    /// `IT_LOOKUP` or `IT_GETATTR`.
    pub(super) opc: u64,
    /// The directory, the user's identity and the requested attributes.
    pub(super) request: MdtBody,
    /// The name; empty for a lookup by FID.
    pub(super) name: Bytes,
    /// Whether to wait for locks; if false, the lookup fails with `EBUSY` instead of waiting.
    pub(super) wait: bool,
}

impl Mdt {
    pub(super) async fn intent_getattr(
        &self,
        req: &ServerRequest,
        cookie: u64,
        opc: u64,
    ) -> Result<IntentResult, Errno> {
        let lookup = LookupRequest {
            cookie,
            opc,
            request: req.get(bufs::INTENT_BODY)?,
            name: name_of(req, bufs::INTENT_NAME),
            wait: true,
        };
        Ok(self.lookup_intent(req, &lookup).await)
    }

    /// Executes a lookup. The result has the error of a failed lookup.
    pub(super) async fn lookup_intent(&self, req: &ServerRequest, lookup: &LookupRequest) -> IntentResult {
        let mut out = IntentResult {
            disposition: DISP_IT_EXECD | DISP_LOOKUP_EXECD,
            bufs: vec![MdtBody::default().to_bytes()],
            ..IntentResult::default()
        };
        match self.find_and_lock(req, lookup, &mut out).await {
            Ok(()) => {}
            Err(Errno::ENOENT) if !lookup.name.is_empty() => out.disposition |= DISP_LOOKUP_NEG,
            Err(e) => out.errno = Some(e),
        }
        out
    }

    /// Finds the inode, grants the client the inode's lock, and puts lock and attributes into
    /// `out`.
    async fn find_and_lock(
        &self,
        req: &ServerRequest,
        lookup: &LookupRequest,
        out: &mut IntentResult,
    ) -> Result<(), Errno> {
        let LookupRequest {
            cookie,
            opc,
            request,
            name,
            wait,
        } = lookup;
        let mut name_lock = self.request_locks(req);
        let fid = if name.is_empty() {
            if request.mbo_fid2 == Fid::ZERO {
                request.mbo_fid1
            } else {
                request.mbo_fid2
            }
        } else {
            match wait {
                true => name_lock.lock_name_read(request.mbo_fid1, name).await?,
                false if name_lock.try_lock_name_read(request.mbo_fid1, name).await? => {}
                false => return Err(Errno::EBUSY),
            }
            let cred = self.cred_of_body(req, request);
            let found = namespace::lookup(&self.store, &cred, request.mbo_fid1, name).await?;
            found.ok_or(Errno::ENOENT)?.fid
        };
        let is_remote = !name.is_empty() && self.is_remote(fid).await?;
        let (bits, try_bits) = match is_remote {
            // The MDT that has the inode grants the other bits.
            true => (locks::LOOKUP, 0),
            false => {
                let inode = self.store.inode(fid).await?;
                self.check_can_use(req, &inode)?;
                let mut bits = locks::LOOKUP | locks::PERM;
                if request.mbo_valid & OBD_MD_FLCROSSREF != 0 {
                    // The MDT that has the name grants the LOOKUP bit.
                    bits = locks::PERM | locks::UPDATE;
                } else if *opc != LOOKUP || inode.ctime.later(QUIET_SECS) < self.clock.now() {
                    bits |= locks::UPDATE;
                }
                (bits, layout_bit(req, &inode) | self.data_bit(req, &inode))
            }
        };
        let (server, client, res) = (self.locks.server(), &req.export, fid.res_id());
        let lock = match wait {
            true => {
                server
                    .grant_to(client, *cookie, res, LockMode::Pr, bits, try_bits)
                    .await?
            }
            false => {
                server
                    .try_grant_to(client, *cookie, res, LockMode::Pr, bits, try_bits)
                    .await?
            }
        };
        if !lock.is_some() {
            return Err(Errno::EBUSY);
        }
        let lock = self.without_data_alone(lock)?;
        drop(name_lock);
        if is_remote {
            out.bufs = vec![body::elsewhere(fid).to_bytes()];
            out.lock = lock;
            out.disposition |= DISP_LOOKUP_POS;
            return Ok(());
        }
        // Read the inode again under the lock. If the lookup is by FID, the inode may be destroyed
        // meanwhile.
        let inode = match self.store.inode(fid).await {
            Ok(inode) => inode,
            Err(e) => {
                self.locks.server().cancel(&req.export, &[lock.handle]);
                return Err(e);
            }
        };
        let Attrs {
            mut body,
            md,
            acl,
            default_lmv,
        } = body::attrs(fid, &inode, self.attr_request(req, request.mbo_valid));
        self.put_data_size(req, fid, &lock, false, &mut body).await;
        out.bufs = vec![body.to_bytes(), md, acl];
        if !default_lmv.is_empty() {
            // The first two buffers of the reply come before these.
            out.bufs.resize(bufs::INTENT_REPLY_DEFAULT_MD - 2, Bytes::new());
            out.bufs.push(default_lmv);
        }
        out.lock = lock;
        out.disposition |= DISP_LOOKUP_POS;
        Ok(())
    }
}

/// The LAYOUT bit for a file, 0 for other inodes and for clients without layout locks. The lock
/// server grants the bit with the others if it is available at once.
pub(super) fn layout_bit(req: &ServerRequest, inode: &Inode) -> u64 {
    let wants_layout = inode.is_file() && req.export.has(OBD_CONNECT_LAYOUTLOCK);
    if wants_layout { locks::LAYOUT } else { 0 }
}
