//! Strings of the protocol: the name of `.lustre`, keys of get_info and set_info, names of extended
//! attributes.

macro_rules! strings {
    ($( $name:ident = $value:literal, )*) => {
        $( #[doc = concat!("`", $value, "`")] pub const $name: &str = $value; )*
    };
}

strings! {
    DOT_LUSTRE_NAME = ".lustre",
    KEY_CHANGELOG_CLEAR = "changelog_clear",
    KEY_CHECKSUM = "checksum",
    KEY_EVICT_BY_NID = "evict_by_nid",
    KEY_FID2PATH = "fid2path",
    KEY_FIEMAP = "fiemap",
    KEY_GRANT_SHRINK = "grant_shrink",
    KEY_LAST_FID = "last_fid",
    KEY_LAST_ID = "last_id",
    KEY_READ_ONLY = "read-only",
    XATTR_NAME_ACL_ACCESS = "system.posix_acl_access",
    XATTR_NAME_ACL_DEFAULT = "system.posix_acl_default",
    XATTR_NAME_DEFAULT_LMV = "trusted.dmv",
    XATTR_NAME_FID = "trusted.fid",
    XATTR_NAME_HSM = "trusted.hsm",
    XATTR_NAME_LINK = "trusted.link",
    XATTR_NAME_LMA = "trusted.lma",
    XATTR_NAME_LMV = "trusted.lmv",
    XATTR_NAME_LOV = "trusted.lov",
    XATTR_NAME_PROJID = "trusted.projid",
    XATTR_NAME_SOM = "trusted.som",
    XATTR_NAME_VERSION = "trusted.version",
    XATTR_LUSTRE_PREFIX = "lustre.",
}
