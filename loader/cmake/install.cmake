# Library, headers, the CMake package and the pkg-config file. Python's wheel takes the component
# headrace_python alone.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/headrace)

install(TARGETS headrace EXPORT headrace-targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT headrace_development
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
    COMPONENT headrace_runtime NAMELINK_COMPONENT headrace_development)
install(DIRECTORY include/headrace DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  COMPONENT headrace_development FILES_MATCHING PATTERN "*.h" PATTERN "trace.h" EXCLUDE)
install(EXPORT headrace-targets NAMESPACE headrace:: DESTINATION ${package_dir}
  COMPONENT headrace_development)

configure_package_config_file(cmake/headrace-config.cmake.in headrace-config.cmake
  INSTALL_DESTINATION ${package_dir}
  NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
# Semantic versioning: below 1.0 every minor version may break.
write_basic_package_version_file(headrace-config-version.cmake COMPATIBILITY SameMinorVersion)
install(
  FILES ${CMAKE_CURRENT_BINARY_DIR}/headrace-config.cmake
        ${CMAKE_CURRENT_BINARY_DIR}/headrace-config-version.cmake
  DESTINATION ${package_dir} COMPONENT headrace_development)

# From where the file lies to the prefix, so that an installed tree may be moved.
file(RELATIVE_PATH prefix_from_pc
  ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/headrace.pc.in headrace.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/headrace.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT headrace_development)
