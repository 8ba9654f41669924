//! Object capabilities: signed permissions for a client on the objects of a file, checked by the
//! OSTs (docs/security.md).
//!
//! A client requests a capability for one object by MDS_GETATTR with `OBD_MD_FLOSSCAPA` and the
//! object in `RMF_CAPA1`, as Lustre's clients did to renew capabilities. The capability combines
//! the permissions of the request's user, of the client's open files, and of the capability that
//! the client presents. So a client can write back cached data after it closed the file, or after a
//! change of the mode.

use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use mgc::CapaScope;
use rpc::ServerRequest;
use wire::format::bufs;
use wire::{
    CAPA_OPC_META_READ, CAPA_OPC_META_WRITE, CAPA_OPC_OSS_READ, CAPA_OPC_OSS_TRUNC, CAPA_OPC_OSS_WRITE,
    Errno, Fid, LustreCapa, MDS_FMODE_EXEC, MDS_FMODE_READ, MdtBody, OBD_MD_FLID, OBD_MD_FLOSSCAPA,
    WireStruct,
};

use crate::{
    cred::{Cred, MAY_READ, MAY_WRITE},
    layout,
    store::Inode,
    target::{HandlerResult, Mdt, reply},
};

/// The operations (`CAPA_OPC_*`) of a user with write permission.
const WRITER_RIGHTS: u64 = CAPA_OPC_OSS_READ | CAPA_OPC_OSS_WRITE | CAPA_OPC_OSS_TRUNC | CAPA_OPC_META_WRITE;

impl Mdt {
    /// Grants a client a capability for an object of a file.
    pub(crate) async fn grant_capability(&self, req: &ServerRequest, body: &MdtBody) -> HandlerResult {
        let request: LustreCapa = req.get(bufs::CAPA_REQUEST)?;
        let file = body.mbo_fid1;
        let inode = self.store.inode(file).await?;
        let objects = layout::objects(&inode.lov)?;
        let object = objects.iter().find(|object| object.fid == request.lc_fid);
        let object = object.filter(|_| inode.is_file()).ok_or(Errno::ENOENT)?;
        let target = self.config.borrow().ost(object.ost).map(|ost| ost.uuid.clone());
        let target = target.ok_or(Errno::ENODEV)?;
        let scope = CapaScope {
            target: &target,
            client: &req.export.client_uuid,
        };
        let cred = self.cred_of_body(req, body);
        let mut rights = self.object_rights(req, file, &inode, &cred);
        if self.capa_keys.check_signature(scope, &request).is_ok() {
            rights |= request.lc_opc;
        }
        let lifetime = self.capa_timeout.load(Relaxed) as u32;
        let capa = LustreCapa {
            lc_fid: object.fid,
            lc_opc: rights,
            lc_uid: cred.fsuid.into(),
            lc_gid: cred.fsgid.into(),
            lc_timeout: lifetime,
            lc_expiry: (self.clock.now().sec as u32).saturating_add(lifetime),
            ..LustreCapa::default()
        };
        // A Lustre MGS has no keys, so its file systems have no capabilities.
        let signed = self.capa_keys.sign(scope, capa).ok_or(Errno::EOPNOTSUPP)?;
        let answer = MdtBody {
            mbo_fid1: file,
            mbo_valid: OBD_MD_FLID | OBD_MD_FLOSSCAPA,
            ..MdtBody::default()
        };
        let empty = Bytes::new;
        Ok(reply(
            6,
            [answer.to_bytes(), empty(), empty(), empty(), signed.to_bytes()],
        ))
    }

    /// The operations (`CAPA_OPC_*`) that the client may do on the file's objects, by the user's
    /// permissions and by the client's open handles of the file.
    fn object_rights(&self, req: &ServerRequest, file: Fid, inode: &Inode, cred: &Cred) -> u64 {
        let open_mode = self.handles(&req.export).combined_mode(file);
        // Reading a file's attributes needs no permission on the file, so neither does reading its
        // objects' attributes.
        let mut rights = CAPA_OPC_META_READ;
        if cred.check(inode, MAY_READ).is_ok() || open_mode.has(MDS_FMODE_READ | MDS_FMODE_EXEC) {
            rights |= CAPA_OPC_OSS_READ;
        }
        if cred.check(inode, MAY_WRITE).is_ok() || open_mode.changes() {
            rights |= WRITER_RIGHTS;
        }
        if cred.owns(inode) {
            rights |= CAPA_OPC_META_WRITE;
        }
        rights
    }
}
