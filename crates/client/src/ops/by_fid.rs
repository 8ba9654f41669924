//! Operations on files by FID: paths, names, removal (`lfs fid2path`, `path2fid --parents`,
//! `rmfid`), and the parent of a directory.
//!
//! A FID bypasses the permissions of the directories above a file. So only the superuser and the
//! mounting user may use FIDs for paths, names and removal, or every user if the mount allows it
//! (`user_fid2path`).

use crate::client::Client;
use crate::cred::{Cred, NO_GROUP};
use crate::mdc::Mdc;
use crate::pack;
use bytes::Bytes;
use rpc::{Request, RpcError};
use std::collections::BTreeMap;
use std::sync::Arc;
use wire::format::bufs;
use wire::{
    Errno, Fid, GetinfoFid2path, HasTimes, MDS_GET_INFO, MDS_GETATTR_NAME, MDS_RMFID, MdtBody, OBD_MD_FLID,
    Times, WireStruct, XATTR_NAME_LINK, before_nul, linkea::LinkEa, nul_terminated,
};

/// Reply space for a path in the first request, in bytes.
const PATH_SPACE: u32 = 4096;
/// Largest reply space for a path, in bytes.
const PATH_SPACE_MAX: u32 = 512 << 10;
/// Largest number of files that one request removes.
const FIDS_PER_REQUEST: usize = 512;
/// Reply space of a request with `FIDS_PER_REQUEST` files, in bytes: 20 for each file, and the
/// fixed parts.
const RMFID_REPLY_LEN: u32 = 20 * FIDS_PER_REQUEST as u32 + 4096;

/// Largest number of times that one path leads from one target to another.
const TARGET_CHANGES_MAX: usize = 256;
/// The link number that means any name: a directory has one.
const ANY_LINK: u32 = u32::MAX;

/// The part of a path that one target knows.
struct PathPart {
    path: Vec<u8>,
    /// The number of the file's next link.
    next: u32,
    /// The directory of another target at which the path continues upwards; `None`: the path is
    /// complete.
    above: Option<Fid>,
}

/// Files to remove at a target, each with its place in the request.
type FilesAt<'a> = (&'a Arc<Mdc>, Vec<(usize, Fid)>);

impl Client {
    /// The paths of a file below the mount's root, one for each of its names there, without a
    /// leading `/`. `fid` is the FID of the file, or of one of its objects on an OST.
    ///
    /// # Errors
    ///
    /// `ENOENT`: no such file, or none of its names is below the mount's root; `ENODATA`: `fid` is
    /// an object that no client has written, so the OST does not know its file; `EPERM`: the caller
    /// may not use FIDs; or an error of a server.
    pub async fn fid2path(&self, cred: &Cred, fid: Fid) -> Result<Vec<Vec<u8>>, Errno> {
        self.check_may_use_fids(cred)?;
        let file = self.file_of(fid).await?;
        let (paths, _) = self.paths(file).await?;
        match paths.is_empty() {
            true => Err(Errno::ENOENT),
            false => Ok(paths),
        }
    }

    /// The names of a file, each with its directory; none if the file has no `trusted.link`
    /// attribute.
    ///
    /// # Errors
    ///
    /// `ENOENT` or `ESTALE`: no such file; `EPERM`: the caller may not use FIDs; or an error of the
    /// MDT.
    pub async fn names(&self, cred: &Cred, fid: Fid) -> Result<Vec<(Fid, Bytes)>, Errno> {
        self.check_may_use_fids(cred)?;
        self.links(fid).await
    }

    /// The index of the MDT that has a file.
    ///
    /// # Errors
    ///
    /// `ENOENT`: no MDT has the FID's sequence; `ENODEV`: the mount does not know the MDT; or an
    /// error of MDT0000.
    pub async fn mdt_of(&self, fid: Fid) -> Result<u32, Errno> {
        Ok(self.lmv.mdc_of(fid).await?.index)
    }

    /// Removes files and empty directories with all their names; returns the result of each.
    /// `EBUSY`: a client has the file open. `ENOENT`: no such file, or one of its names is not
    /// below the mount's root.
    ///
    /// # Errors
    ///
    /// `EPERM`: the caller may not use FIDs; or an error of a server, which may come after some of
    /// the files were removed.
    pub async fn rmfid(&self, cred: &Cred, fids: &[Fid]) -> Result<Vec<Result<(), Errno>>, Errno> {
        self.check_may_use_fids(cred)?;
        let mut results = Vec::with_capacity(fids.len());
        for batch in fids.chunks(FIDS_PER_REQUEST) {
            results.extend(self.remove_batch(cred, batch).await?);
        }
        Ok(results)
    }

    /// The parent of a directory. The parent of the mount's root is the root itself.
    ///
    /// # Errors
    ///
    /// `ENOENT` or `ESTALE`: no such directory; `ENOTDIR`; or an error of the MDT.
    pub async fn parent(&self, cred: &Cred, dir: Fid) -> Result<Fid, Errno> {
        if dir == self.root() {
            return Ok(dir);
        }
        let mdc = self.lmv.mdc_of(dir).await?;
        let body = pack::body(cred, dir, Fid::ZERO, OBD_MD_FLID, self.suppgid(cred, dir).await);
        let bufs = vec![body.to_bytes(), Bytes::new(), nul_terminated(b"..")];
        let reply = mdc.call(MDS_GETATTR_NAME, bufs).await?;
        let parent = reply.get::<MdtBody>(bufs::MDT_BODY)?.mbo_fid1;
        Ok(self.inodes.whole_dir(parent))
    }

    /// Checks that the caller may use FIDs; `EPERM` otherwise.
    fn check_may_use_fids(&self, cred: &Cred) -> Result<(), Errno> {
        match cred.uid == 0 || cred.uid == self.mounter || self.user_fid2path {
            true => Ok(()),
            false => Err(Errno::EPERM),
        }
    }

    /// The FID of a file, given the FID of the file itself or of one of its objects on an OST.
    async fn file_of(&self, fid: Fid) -> Result<Fid, Errno> {
        match self.lmv.mdc_of(fid).await {
            Ok(_) => Ok(fid),
            Err(Errno::ENOENT) => {
                let ost = self.lmv.ost_of(fid.f_seq).await?;
                self.lov.file_of(ost, fid).await
            }
            Err(e) => Err(e),
        }
    }

    /// The paths of a file below the mount's root, and whether all names of the file are below the
    /// root.
    async fn paths(&self, fid: Fid) -> Result<(Vec<Vec<u8>>, bool), Errno> {
        let mdc = self.lmv.mdc_of(fid).await?;
        let (mut paths, mut all_below, mut link) = (Vec::new(), true, 0);
        loop {
            let next = match self.path(mdc, fid, link).await {
                Ok((path, next)) => {
                    if !paths.contains(&path) {
                        paths.push(path);
                    }
                    next
                }
                // This name is outside of the mount; another one may be inside.
                Err(Errno::ENOENT) => {
                    all_below = false;
                    let last_link = self.links(fid).await?.len().saturating_sub(1);
                    (link + 1).min(last_link as u32)
                }
                Err(e) => return Err(e),
            };
            if next <= link {
                return Ok((paths, all_below));
            }
            link = next;
        }
    }

    /// The path by link number `link` of a file, and the number of the next link; for the last
    /// link, `link` itself. Asks the targets of the directories above one after the other.
    /// `ENOENT`: the path is not below the mount's root.
    async fn path(&self, mdc: &Mdc, fid: Fid, link: u32) -> Result<(Vec<u8>, u32), Errno> {
        let mut lowest = self.path_part(mdc, fid, link).await?;
        let (mut path, mut above) = (std::mem::take(&mut lowest.path), lowest.above);
        for _ in 0..TARGET_CHANGES_MAX {
            let Some(dir) = above else {
                return Ok((path, lowest.next));
            };
            let mdc = self.lmv.mdc_of(dir).await?;
            let part = self.path_part(mdc, dir, ANY_LINK).await?;
            if !part.path.is_empty() {
                path = [&part.path[..], b"/", &path].concat();
            }
            above = part.above;
        }
        Err(Errno::ELOOP)
    }

    /// The part of a path that one target knows.
    async fn path_part(&self, mdc: &Mdc, fid: Fid, link: u32) -> Result<PathPart, Errno> {
        let mut space = PATH_SPACE;
        loop {
            let query = GetinfoFid2path {
                gf_fid: fid,
                gf_linkno: link,
                gf_pathlen: space,
                ..GetinfoFid2path::default()
            };
            let key = pack::fid2path_key(&query, &self.root().to_bytes());
            let len = (GetinfoFid2path::SIZE as u32 + space).to_le_bytes();
            let bufs = vec![key, Bytes::copy_from_slice(&len)];
            let reply = mdc.call_for_status(MDS_GET_INFO, bufs, space).await?;
            let continues = match Errno::from_status(reply.status) {
                None => false,
                Some(Errno::EREMOTE) => true,
                Some(Errno::ENAMETOOLONG) if space < PATH_SPACE_MAX => {
                    space *= 2;
                    continue;
                }
                Some(errno) => return Err(RpcError::Status(errno).into()),
            };
            let path = reply
                .buf(bufs::GET_INFO_VALUE)
                .get(GetinfoFid2path::SIZE..)
                .ok_or(Errno::EPROTO)?;
            let answer = reply.get::<GetinfoFid2path>(bufs::GET_INFO_VALUE)?;
            return Ok(PathPart {
                path: before_nul(path).to_vec(),
                next: answer.gf_linkno,
                above: continues.then_some(answer.gf_fid),
            });
        }
    }

    /// Reads the names of a file, each with its directory, from its `trusted.link` attribute.
    /// Empty: the file lacks the attribute.
    async fn links(&self, fid: Fid) -> Result<Vec<(Fid, Bytes)>, Errno> {
        let link = XATTR_NAME_LINK.as_bytes();
        match self.fetch_xattr(&Cred::root(), fid, link).await {
            Ok(links) => Ok(LinkEa::parse(&links)?.links),
            Err(Errno::ENODATA) => Ok(Vec::new()),
            Err(e) => Err(e),
        }
    }

    /// Removes files and empty directories with one request to each target; returns the result of
    /// each.
    async fn remove_batch(&self, cred: &Cred, fids: &[Fid]) -> Result<Vec<Result<(), Errno>>, Errno> {
        let mut results = vec![Ok(()); fids.len()];
        let mut below_root = Vec::with_capacity(fids.len());
        for (index, fid) in fids.iter().enumerate() {
            match self.check_is_below_root(*fid).await {
                Ok(()) => below_root.push((index, *fid)),
                Err(e) => results[index] = Err(e),
            }
        }
        let mut by_target: BTreeMap<u32, FilesAt<'_>> = BTreeMap::new();
        for (index, fid) in below_root {
            match self.lmv.mdc_of(fid).await {
                Ok(mdc) => {
                    let (_, files) = by_target.entry(mdc.index).or_insert_with(|| (mdc, Vec::new()));
                    files.push((index, fid));
                }
                Err(e) => results[index] = Err(e),
            }
        }
        for (mdc, files) in by_target.into_values() {
            if let Err(e) = self.remove_at(cred, mdc, &files, &mut results).await {
                // Another target may have removed its files.
                files.iter().for_each(|(index, _)| results[*index] = Err(e));
            }
        }
        Ok(results)
    }

    /// Removes files of one target with one request. `files`: each with the index of its result.
    async fn remove_at(
        &self,
        cred: &Cred,
        mdc: &Arc<Mdc>,
        files: &[(usize, Fid)],
        results: &mut [Result<(), Errno>],
    ) -> Result<(), Errno> {
        let mut array = Vec::with_capacity(files.len() * Fid::SIZE);
        for (_, fid) in files {
            // A deferred close would keep the file open.
            mdc.close_now(*fid).await;
            array.extend_from_slice(&fid.to_bytes());
        }
        let mut body = pack::body(cred, Fid::ZERO, Fid::ZERO, 0, NO_GROUP);
        body.set_times(Times {
            ctime: self.now(mdc),
            ..Times::default()
        });
        let bufs = vec![body.to_bytes(), array.into(), Bytes::new(), Bytes::new()];
        let request = Request {
            reply_len: RMFID_REPLY_LEN,
            ..Request::modifying(MDS_RMFID, bufs)
        };
        let reply = mdc.import.call(request).await?;
        let (statuses, _) = reply.buf(bufs::RMFID_STATUSES).as_chunks::<4>();
        if statuses.len() != files.len() {
            return Err(Errno::EPROTO);
        }
        for ((index, _), status) in files.iter().zip(statuses) {
            if let Some(e) = Errno::from_status(i32::from_le_bytes(*status))
                && let Some(result) = results.get_mut(*index)
            {
                *result = Err(e);
            }
        }
        Ok(())
    }

    /// Checks that all names of a file are below the mount's root; `ENOENT` otherwise.
    async fn check_is_below_root(&self, fid: Fid) -> Result<(), Errno> {
        if self.root().is_root() {
            return Ok(());
        }
        match self.paths(fid).await? {
            (_, true) => Ok(()),
            (_, false) => Err(Errno::ENOENT),
        }
    }
}
