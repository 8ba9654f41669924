//! The directory object that has a name: the directory itself, or a stripe of a striped directory.
//!
//! Each stripe is a directory of its own for its metadata target, with its own locks. So the client
//! caches names, negative entries and listings by stripe. The kernel knows only the whole
//! directory.

use crate::attr::{MdAttr, Striping};
use crate::client::Client;
use crate::cred::Cred;
use crate::mdc::Mdc;
use std::sync::Arc;
use wire::striping::LmvLayout;
use wire::{Errno, Fid};

/// A directory or stripe that has a name, or will have it.
#[derive(Clone, Copy)]
pub(crate) struct NameDir<'c> {
    /// The directory or stripe.
    pub(crate) fid: Fid,
    /// The whole directory.
    pub(crate) shown: Fid,
    /// The target of `fid`. It grants the locks on the directory's names.
    pub(crate) mdc: &'c Arc<Mdc>,
    /// The version of a striped directory's layout; 0 for other directories.
    pub(crate) layout_version: u32,
}

impl Client {
    /// The stripes of a directory; `None`: the directory is not striped.
    ///
    /// # Errors
    ///
    /// `EBADF`: the directory's layout is of an unknown kind; or an error of the MDT.
    pub(crate) async fn stripes(&self, cred: &Cred, dir: Fid) -> Result<Option<Arc<LmvLayout>>, Errno> {
        if !self.inodes.may_be_striped(dir) {
            return Ok(None);
        }
        // The future of a getattr is large; most directories are not striped.
        match Box::pin(self.md(cred, dir)).await?.striping {
            Striping::None => Ok(None),
            Striping::Striped(layout) => Ok(Some(layout)),
            Striping::Unusable => Err(Errno::EBADF),
        }
    }

    /// The directories that may have an existing name, in the order in which to look: usually one.
    pub(crate) async fn dirs_of_name(
        &self,
        cred: &Cred,
        dir: Fid,
        name: &[u8],
    ) -> Result<NameDirs<'_>, Errno> {
        match self.stripes(cred, dir).await? {
            None => Ok(NameDirs::One(Some(self.plain_dir(dir).await?))),
            Some(layout) => {
                let stripes = layout.stripes_of(name).into_iter();
                let version = layout.head.lmv_layout_version;
                Ok(NameDirs::Stripes(self, dir, version, stripes))
            }
        }
    }

    /// The directory for a new name.
    ///
    /// # Errors
    ///
    /// `EEXIST`: the MDTs are moving the directory's names, and the name is still in its old
    /// stripe; `EBADF`: the hash function of the directory is unknown; `ENODEV`: the stripe is
    /// lost; or an error of an MDT.
    pub(crate) async fn dir_for_new_name(
        &self,
        cred: &Cred,
        dir: Fid,
        name: &[u8],
    ) -> Result<NameDir<'_>, Errno> {
        let Some(layout) = self.stripes(cred, dir).await? else {
            return self.plain_dir(dir).await;
        };
        let stripe = layout.stripe_for_new(name).ok_or(Errno::EBADF)?;
        if layout.is_changing()
            && let Some(old) = layout.stripes_of(name).first().filter(|old| **old != stripe)
        {
            let old = self.stripe(dir, *old, layout.head.lmv_layout_version).await?;
            match Box::pin(self.resolve_in(cred, &old, name)).await {
                Ok(_) => return Err(Errno::EEXIST),
                Err(Errno::ENOENT) => {}
                Err(e) => return Err(e),
            }
        }
        self.stripe(dir, stripe, layout.head.lmv_layout_version).await
    }

    /// A directory that is not striped, with its target.
    pub(crate) async fn plain_dir(&self, dir: Fid) -> Result<NameDir<'_>, Errno> {
        Ok(NameDir {
            fid: dir,
            shown: dir,
            mdc: self.lmv.mdc_of(dir).await?,
            layout_version: 0,
        })
    }

    /// A stripe of a directory, with its target. `ENODEV`: the stripe is lost.
    pub(crate) async fn stripe(
        &self,
        dir: Fid,
        stripe: Fid,
        layout_version: u32,
    ) -> Result<NameDir<'_>, Errno> {
        if stripe.is_zero() {
            return Err(Errno::ENODEV);
        }
        Ok(NameDir {
            fid: stripe,
            shown: dir,
            mdc: self.lmv.mdc_of(stripe).await?,
            layout_version,
        })
    }
}

/// The directories that may have a name.
pub(crate) enum NameDirs<'c> {
    One(Option<NameDir<'c>>),
    Stripes(&'c Client, Fid, u32, std::vec::IntoIter<Fid>),
}

impl<'c> NameDirs<'c> {
    /// The next directory to look in.
    pub(crate) async fn next(&mut self) -> Result<Option<NameDir<'c>>, Errno> {
        match self {
            NameDirs::One(dir) => Ok(dir.take()),
            NameDirs::Stripes(client, dir, version, stripes) => match stripes.next() {
                None => Ok(None),
                Some(stripe) => client.stripe(*dir, stripe, *version).await.map(Some),
            },
        }
    }
}

/// A name's file, and its attributes if the reply had them.
pub(crate) struct Resolved<'c> {
    pub(crate) fid: Fid,
    pub(crate) md: Option<MdAttr>,
    /// Whether the directory's target said now that another target has the file.
    pub(crate) is_remote: bool,
    /// The directory that has the name.
    pub(crate) dir: NameDir<'c>,
}
