//! Requests that grant the client no lock and change nothing except access times of directories:
//! attributes, extended attributes, directory pages, the root directory, statfs and sync.

use bytes::Bytes;
use rpc::ServerRequest;
use wire::format::bufs;
use wire::{
    Errno, Fid, HasTimes, MDS_BULK_PORTAL, MdtBody, OBD_CONNECT_ACL, OBD_CONNECT2_OVERSTRIPING,
    OBD_CONNECT2_SUM_STATFS, OBD_MD_FLAGSTATFS, OBD_MD_FLATIME, OBD_MD_FLID, OBD_MD_FLOSSCAPA,
    OBD_MD_FLXATTR, OBD_MD_FLXATTRLS, OS_STATFS_ENOSPC, OS_STATFS_SUM, ObdStatfs, Precision, WireStruct,
};

use crate::{
    body::{self, AttrRequest},
    cred::MAY_READ,
    dirpage, layout,
    namespace::{self, lookup, xattr},
    store::Inode,
    target::{HandlerResult, Mdt, name_of, precision, reply},
};

/// Maximum size of directory pages in one bulk, bytes.
const READPAGE_MAX: usize = 1 << 20;
/// The file system's type in statfs: the magic number of ldiskfs, which clients expect from an MDT.
const OS_TYPE: u64 = 0xef53;
/// Maximum file size in bytes, as statfs reports it: programs use signed sizes.
const FILE_BYTES_MAX: u64 = i64::MAX as u64;
/// Maximum length of a name, bytes.
const NAME_LEN: u32 = 255;
/// Maximum size of a new inode with its name in the index, bytes. Statfs reports the free space
/// divided by this as free inodes.
const INODE_BYTES: u64 = 1024;

impl Mdt {
    /// A request for the attributes `valid` (`OBD_MD_*`), with the limits of this client.
    pub(crate) fn attr_request(&self, req: &ServerRequest, valid: u64) -> AttrRequest {
        AttrRequest {
            valid,
            max_mdsize: self.max_mdsize(),
            supports_acl: req.export.has(OBD_CONNECT_ACL),
            precision: precision(req),
        }
    }

    /// Checks that a client can use a file's layout. `EOPNOTSUPP` for an overstriped file and an
    /// old client: such clients can crash.
    pub(crate) fn check_can_use(&self, req: &ServerRequest, inode: &Inode) -> Result<(), Errno> {
        let supported = req.export.has2(OBD_CONNECT2_OVERSTRIPING) || !inode.is_file();
        match supported || !layout::is_overstriped(&inode.lov) {
            true => Ok(()),
            false => Err(Errno::EOPNOTSUPP),
        }
    }

    async fn attrs_reply(&self, req: &ServerRequest, fid: Fid, valid: u64) -> HandlerResult {
        let inode = self.store.inode(fid).await?;
        self.check_can_use(req, &inode)?;
        let mut attrs = body::attrs(fid, &inode, self.attr_request(req, valid));
        if !attrs.default_lmv.is_empty() {
            // This reply has no buffer of its own for a default layout.
            attrs.body.mbo_eadatasize = attrs.default_lmv.len() as u32;
            attrs.md = attrs.default_lmv;
        }
        Ok(reply(6, [attrs.body.to_bytes(), attrs.md, attrs.acl]))
    }

    /// Executes `MDS_GETATTR`: attributes by FID, or a capability for an object of the file.
    pub(crate) async fn getattr(&self, req: &ServerRequest) -> HandlerResult {
        let body: MdtBody = req.get(bufs::MDT_BODY)?;
        if body.mbo_valid & OBD_MD_FLOSSCAPA != 0 {
            return self.grant_capability(req, &body).await;
        }
        self.attrs_reply(req, body.mbo_fid1, body.mbo_valid).await
    }

    /// Executes `MDS_GETATTR_NAME`: attributes by name.
    pub(crate) async fn getattr_name(&self, req: &ServerRequest) -> HandlerResult {
        let body: MdtBody = req.get(bufs::MDT_BODY)?;
        let name = name_of(req, bufs::GETATTR_NAME);
        let mut locks = self.request_locks(req);
        locks.lock_name_read(body.mbo_fid1, &name).await?;
        let found = lookup(&self.store, &self.cred_of_body(req, &body), body.mbo_fid1, &name).await?;
        let fid = found.ok_or(Errno::ENOENT)?.fid;
        match self.is_remote(fid).await? {
            true => Ok(reply(6, [body::elsewhere(fid).to_bytes()])),
            false => self.attrs_reply(req, fid, body.mbo_valid).await,
        }
    }

    /// Executes `MDS_GETXATTR`: one extended attribute, or the names of all.
    pub(crate) async fn getxattr(&self, req: &ServerRequest) -> HandlerResult {
        let body: MdtBody = req.get(bufs::MDT_BODY)?;
        let fid = body.mbo_fid1;
        let value = if body.mbo_valid & OBD_MD_FLXATTRLS != 0 {
            let names = xattr::listxattr(&self.store, fid).await?;
            let mut list = Vec::new();
            for (name, _) in names {
                list.extend_from_slice(&name);
                list.push(0);
            }
            Bytes::from(list)
        } else if body.mbo_valid & OBD_MD_FLXATTR != 0 {
            xattr::getxattr(
                &self.store,
                &self.cred_of_body(req, &body),
                fid,
                &name_of(req, bufs::GETATTR_NAME),
            )
            .await?
        } else {
            return Err(Errno::EINVAL);
        };
        let len = value.len() as u32;
        let answer = |mbo_eadatasize: u32| {
            MdtBody {
                // Lustre sets the bit also for an empty value.
                mbo_valid: OBD_MD_FLXATTR,
                mbo_eadatasize,
                ..MdtBody::default()
            }
            .to_bytes()
        };
        match body.mbo_eadatasize {
            // The client requests only the size.
            0 => Ok(reply(2, [answer(len)])),
            capacity if capacity < len => Err(Errno::ERANGE),
            _ => Ok(reply(2, [answer(len), value])),
        }
    }

    /// Executes `MDS_READPAGE`: sends directory pages by bulk.
    pub(crate) async fn readpage(&self, req: &mut ServerRequest) -> HandlerResult {
        let body: MdtBody = req.get(bufs::MDT_BODY)?;
        let dir = self.store.inode(body.mbo_fid1).await?;
        self.cred_of_body(req, &body).check(&dir, MAY_READ)?;
        if precision(req) == Precision::Nanoseconds && body.mbo_valid & OBD_MD_FLATIME != 0 {
            // The read succeeds even if the store cannot record the access time, for example
            // because it is full.
            if let Err(e) = namespace::record_access(&self.store, body.mbo_fid1, body.times().atime).await {
                tracing::debug!(
                    "cannot record the access time of directory {}: {e}",
                    body.mbo_fid1
                );
            }
        }
        // Clients send the read size in `mbo_nlink`, and the hash to start from in `mbo_size`.
        let bytes = (body.mbo_nlink as usize).min(READPAGE_MAX);
        if bytes < wire::dirpage::PAGE {
            return Err(Errno::EINVAL);
        }
        let pages = dirpage::pages(&self.store, body.mbo_fid1, body.mbo_size, bytes).await?;
        req.bulk_put(MDS_BULK_PORTAL, vec![pages.into()]).await?;
        Ok(reply(1, [MdtBody::default().to_bytes()]))
    }

    /// Executes `MDS_GET_ROOT`: the FID of the root directory, or of the subdirectory that a client
    /// mounts. `EINVAL` for a path with ".." or a name that is too long.
    pub(crate) async fn get_root(&self, req: &ServerRequest) -> HandlerResult {
        let body: MdtBody = req.get(bufs::MDT_BODY)?;
        let cred = self.cred_of_body(req, &body);
        let mut fid = Fid::ROOT;
        let path = name_of(req, bufs::ROOT_PATH);
        let names = path.split(|b| *b == b'/');
        for name in names.filter(|n| !n.is_empty() && *n != b".") {
            if name == b".." || name.len() > NAME_LEN as usize {
                return Err(Errno::EINVAL);
            }
            if self.is_remote(fid).await? {
                break;
            }
            fid = lookup(&self.store, &cred, fid, name)
                .await?
                .ok_or(Errno::ENOENT)?
                .fid;
        }
        if self.is_remote(fid).await? {
            // A mount of a directory that another MDT has, or below one.
            return Err(Errno::EOPNOTSUPP);
        }
        if !self.store.inode(fid).await?.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        let answer = MdtBody {
            mbo_fid1: fid,
            mbo_valid: OBD_MD_FLID,
            ..MdtBody::default()
        };
        Ok(reply(2, [answer.to_bytes()]))
    }

    /// Executes `MDS_STATFS`: the space of this target, or on request the sum over all OSTs.
    pub(crate) async fn statfs(&self, req: &ServerRequest) -> HandlerResult {
        let own = self.store.index().space().statfs()?;
        let full = own.bavail == 0;
        let (files, ffree) = match self.store.inodes_used() {
            Some(used) => {
                let free = own.bavail.saturating_mul(u64::from(own.bsize)) / INODE_BYTES;
                (used.saturating_add(free), free)
            }
            None => (own.files, own.ffree),
        };
        let mut answer = ObdStatfs {
            os_type: OS_TYPE,
            os_blocks: own.blocks,
            os_bfree: own.bfree,
            os_bavail: own.bavail,
            os_files: files,
            os_ffree: ffree,
            os_bsize: own.bsize,
            os_namelen: NAME_LEN,
            os_maxbytes: FILE_BYTES_MAX,
            os_state: if full { OS_STATFS_ENOSPC } else { 0 },
            ..ObdStatfs::default()
        };
        // A client that requests this target's own space sends no body.
        let wants_sum = !req.msg.buf(bufs::MDT_BODY).is_empty()
            && req.get::<MdtBody>(bufs::MDT_BODY)?.mbo_valid & OBD_MD_FLAGSTATFS != 0;
        if wants_sum && req.export.has2(OBD_CONNECT2_SUM_STATFS) {
            set_ost_sums(&mut answer, &self.osts.statfs().await);
        }
        Ok(reply(1, [answer.to_bytes()]))
    }

    /// Executes `MDS_SYNC`: waits until all changes made so far are on disk. The reply has the
    /// attributes of a file if the request names one.
    pub(crate) async fn sync(&self, req: &ServerRequest) -> HandlerResult {
        let request: MdtBody = req.get(bufs::MDT_BODY)?;
        self.store.index().sync().await?;
        let answer = match request.mbo_fid1 {
            Fid::ZERO => MdtBody::default(),
            fid => body::basic_body(fid, &self.store.inode(fid).await?, precision(req)),
        };
        Ok(reply(1, [answer.to_bytes()]))
    }
}

/// Replaces the MDT's blocks in `answer` by the sum over the OSTs, in units of the MDT's block
/// size. A new file needs an inode and an object: the number of free files is the lower of the
/// MDT's free inodes and the OSTs' free objects.
fn set_ost_sums(answer: &mut ObdStatfs, osts: &[ObdStatfs]) {
    if osts.is_empty() {
        return;
    }
    let (own_files, own_ffree) = (answer.os_files, answer.os_ffree);
    let bsize = u64::from(answer.os_bsize.max(1));
    let scaled = |blocks: u64, ost: &ObdStatfs| {
        (u128::from(blocks) * u128::from(ost.os_bsize) / u128::from(bsize)) as u64
    };
    let total = |field: fn(&ObdStatfs) -> u64| {
        osts.iter()
            .map(|o| scaled(field(o), o))
            .fold(0, u64::saturating_add)
    };
    answer.os_blocks = total(|o| o.os_blocks);
    answer.os_bfree = total(|o| o.os_bfree);
    answer.os_bavail = total(|o| o.os_bavail);
    let used = own_files - own_ffree.min(own_files);
    let objects = osts.iter().map(|o| o.os_ffree).fold(0, u64::saturating_add);
    answer.os_ffree = own_ffree.min(objects);
    answer.os_files = used + answer.os_ffree;
    answer.os_state |= OS_STATFS_SUM;
}

#[cfg(test)]
mod tests {
    use super::set_ost_sums;
    use wire::ObdStatfs;

    #[test]
    fn statfs_sum_converts_block_sizes_and_limits_files_by_objects() {
        let mut answer = ObdStatfs {
            os_bsize: 4096,
            os_files: 100,
            os_ffree: 90,
            os_blocks: 1,
            ..ObdStatfs::default()
        };
        let ost = ObdStatfs {
            os_bsize: 8192,
            os_blocks: 10,
            os_bfree: 6,
            os_bavail: 5,
            os_ffree: 20,
            ..ObdStatfs::default()
        };
        set_ost_sums(&mut answer, &[ost, ost]);
        assert_eq!(
            (answer.os_blocks, answer.os_bfree, answer.os_bavail),
            (40, 24, 20)
        );
        assert_eq!((answer.os_files, answer.os_ffree), (50, 40));
    }
}
