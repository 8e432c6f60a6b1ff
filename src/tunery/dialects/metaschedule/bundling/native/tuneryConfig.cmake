# find_package(tunery) in a bundle: cmake -Dtunery_DIR=BUNDLE/lib/cmake/tunery; link with tunery::tunery.
get_filename_component(_tunery_bundle "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET tunery::tunery)
  add_library(tunery::tunery SHARED IMPORTED)
  set_target_properties(tunery::tunery PROPERTIES
    IMPORTED_LOCATION "${_tunery_bundle}/lib/libtunery.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_tunery_bundle}/include"
    INTERFACE_LINK_OPTIONS "LINKER:-rpath-link,${_tunery_bundle}/lib")
endif()
set(tunery_NETWORK "${_tunery_bundle}/network")
unset(_tunery_bundle)
