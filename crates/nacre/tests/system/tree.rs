//! A source tree for copies: a limited part of the files on this machine, and one example of every
//! kind of file.

use crate::fixture::sh;

/// Limits of the part that is taken from this machine.
const ENTRIES_MAX: u64 = 1200;
const BYTES_MAX: u64 = 12 << 20;
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Creates the tree.
pub(crate) fn create(dir: &str) {
    sh(&format!(
        r#"
        mkdir -p {dir}/installed
        find /usr/lib /usr/share -xdev -mindepth 1 '(' -type d -o -type l -o -type f -size -{FILE_BYTES_MAX}c ')' -printf '%s %P %h\n' |
            awk 'NF == 3 && NR % 17 == 0 && n < {ENTRIES_MAX} && (bytes += $1) < {BYTES_MAX} {{ n++; sub(".*/", "", $2); print $3 "/" $2 }}' |
            tar -C / -P --no-recursion --xattrs -cf - -T - | tar -C {dir}/installed --xattrs -xpf -
        cd {dir}
        mkdir -p special/empty 'special/odd names' special/sticky special/inherits
        echo linked > special/hard1
        ln special/hard1 special/hard2
        ln special/hard1 'special/odd names/hard3'
        ln -s hard1 special/soft
        ln -s /nowhere/at/all special/dangling
        ln -s "$(printf 'x%.0s' $(seq 1000))" special/long-link
        mkfifo special/fifo
        mknod special/null c 1 3
        : > "special/$(printf 'n%.0s' $(seq 255))"
        echo odd > $'special/odd names/tab\tand\nnewline'
        echo odd > 'special/odd names/snow ☃ man'
        truncate -s 5000000 special/sparse && echo end >> special/sparse
        head -c 3000001 /dev/urandom > special/three-megabytes
        for mode in 0000 0400 0641 2755 4755 6711; do echo $mode > special/mode-$mode; chmod $mode special/mode-$mode; done
        chmod 1777 special/sticky
        chown 1234:5678 special/mode-0641 special/empty && chmod 2770 special/empty
        chown -h 4321:8765 special/soft
        setfattr -n user.comment -v 'a comment' special/hard1
        setfattr -n user.binary -v 0x00ff00ff special/mode-0641
        setfattr -n user.of-a-directory -v "$(printf 'v%.0s' $(seq 900))" special/empty
        setfattr -n trusted.mark -v mark special/sparse
        setfacl -m u:1234:rwx,g:5678:r special/mode-0400
        setfacl -d -m u:1234:rx special/inherits
        touch -h -d @86400 special/soft
        touch -d '1980-01-01 00:00:00Z' special/hard1
        touch -d @4102444800 special/fifo
        touch -d @1000000000 special/empty special
        "#
    ));
}
