#!/bin/sh
# slim.sh SITE_PACKAGES: removes what a node never imports, for its size: pyarrow's Flight, S3,
# headers and tests, a backend of zstandard's for another Python, and what only installs.
set -eu
cd "$1"
rm -rf pip pip-*.dist-info setuptools setuptools-*.dist-info pkg_resources _distutils_hack \
  distutils-precedence.pth zstandard/_cffi.* \
  pyarrow/include pyarrow/tests pyarrow/src pyarrow/*.pyx pyarrow/*.pxi \
  pyarrow/libarrow_flight.* pyarrow/libarrow_python_flight.* pyarrow/_flight.* \
  pyarrow/libarrow_s3.* pyarrow/_s3fs.* pyarrow/_substrait.* \
  pyarrow/libarrow_python.so pyarrow/libarrow_python.so.*.*.*
# Of what colours code, Python alone: rich shows tracebacks with it.
find pygments/lexers -mindepth 1 ! -name __init__.py ! -name _mapping.py ! -name python.py \
  ! -name special.py -delete
