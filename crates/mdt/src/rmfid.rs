//! `MDS_RMFID`: removes files and empty directories by FID, with all their recorded names
//! (`lfs rmfid`).
//!
//! Each removed name is a transaction of its own, so the store keeps no reply to the request as a
//! whole. If the target restarts meanwhile, the client sends the request again, and the target
//! executes it again: a file that does not exist was removed before.

use bytes::{BufMut, BytesMut};
use rpc::ServerRequest;
use wire::format::bufs;
use wire::{Errno, Fid, HasTimes, MdtBody, OBD_MAX_FIDS_IN_ARRAY, Time, Transno, WireStruct};

use crate::{
    cred::{Cred, MAY_WRITE},
    namespace::{self, NameToRemove, UnlinkArgs},
    store::{Inode, links},
    target::{HandlerResult, Mdt, precision, reply},
};

impl Mdt {
    /// Executes `MDS_RMFID`. The reply has the request's array of FIDs, and a status for each.
    pub(crate) async fn rmfid(&self, req: &ServerRequest) -> HandlerResult {
        let body: MdtBody = req.get(bufs::MDT_BODY)?;
        let fids = parse_fids(req.buf(bufs::RMFID_FIDS))?;
        self.check_writable(req)?;
        self.throttle().await;
        let cred = self.cred_of_body(req, &body);
        let time = precision(req).of(body.times().ctime);
        let (mut statuses, mut last_transno) = (BytesMut::with_capacity(fids.len() * 4), Transno::NONE);
        for fid in fids {
            let result = self.remove_by_fid(req, &cred, fid, time, &mut last_transno).await;
            statuses.put_i32_le(result.err().map_or(0, Errno::status));
        }
        let bufs = [
            MdtBody::default().to_bytes(),
            req.bytes(bufs::RMFID_FIDS),
            statuses.freeze(),
        ];
        Ok(reply(3, bufs).with_transno(last_transno))
    }

    /// Removes all recorded names of one file; names that did not fit into `trusted.link` stay.
    /// Sets `last_transno` to the transaction number of the last successful removal, also if the
    /// removal of a further name fails. `EBUSY` if a client has the file open.
    async fn remove_by_fid(
        &self,
        req: &ServerRequest,
        cred: &Cred,
        fid: Fid,
        time: Time,
        last_transno: &mut Transno,
    ) -> Result<(), Errno> {
        namespace::check_fid(fid)?;
        let was_sent_before = req.is_resent() || self.is_replay(req);
        let inode = match self.store.find(fid).await? {
            Some(inode) => inode,
            None if was_sent_before => return Ok(()),
            None => return Err(Errno::ENOENT),
        };
        if inode.flags & namespace::IMMUTABLE != 0 {
            return Err(Errno::EACCES);
        }
        cred.check(&inode, MAY_WRITE)?;
        let names = links::parse(&inode.links).links;
        if names.is_empty() {
            return Err(Errno::ENOENT);
        }
        for (parent, name) in names {
            let args = UnlinkArgs {
                parent,
                name: &name,
                is_rmdir: inode.is_dir(),
                time,
            };
            *last_transno = self.remove_name(req, cred, fid, &inode, args).await?;
        }
        Ok(())
    }

    /// Removes one name; returns the transaction number. `ENOENT` if the name does not lead to the
    /// file any more.
    async fn remove_name(
        &self,
        req: &ServerRequest,
        cred: &Cred,
        fid: Fid,
        inode: &Inode,
        args: UnlinkArgs<'_>,
    ) -> Result<Transno, Errno> {
        let check = |found: NameToRemove| {
            let is_file = found.entry.fid == fid && found.entry.kind == inode.kind();
            is_file.then_some(found).ok_or(Errno::ENOENT)
        };
        let found = check(NameToRemove::find(&self.store, cred, args).await?)?;
        // The client does not know which directories change, so the MDT revokes the client's own
        // locks on them, too.
        let mut locks = self.locks.request_locks(Some(&req.export), false);
        locks.lock_name_write(args.parent, args.name).await?;
        let found = check(found.refresh(&self.store, cred, args).await?)?;
        locks.lock_for_removal_with_open(fid).await?;
        let store = self.request_store(req).without_reply();
        Ok(namespace::unlink_unused(store, cred, args, found).await?.transno)
    }
}

/// Parses the array of FIDs of a request. `EINVAL` if it is too long or the last FID is incomplete.
fn parse_fids(array: &[u8]) -> Result<Vec<Fid>, Errno> {
    let (fids, rest) = array.as_chunks::<{ Fid::SIZE }>();
    if !rest.is_empty() || fids.len() > OBD_MAX_FIDS_IN_ARRAY as usize {
        return Err(Errno::EINVAL);
    }
    fids.iter().map(|fid| Ok(Fid::from_bytes(fid)?)).collect()
}
